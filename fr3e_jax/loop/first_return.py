"""First Return: base rollouts of some prompts, graded, the degenerate ones rejected, the bases to expand picked."""

from __future__ import annotations

import numpy as np

from fr3e_jax.loop.experience import PromptGroup, TrainingBranch, TrainingTrunk
from fr3e_jax.loop.grading import Grading, rewards_of
from fr3e_jax.loop.prompts import Prompt
from fr3e_jax.loop.requests import Branch, Rollout, TrunkRequest
from fr3e_jax.loop.session import BASE, CHOICE, Session
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.exploration import group_advantages
from fr3e_jax.rewards.verifier import SUCCESS


def first_return(session: Session, params: Params, step: int, prompts: list[Prompt]) -> list[PromptGroup]:
    """Sample, grade and sift the base rollouts of ``prompts``.

    Rollouts are graded while others still decode. A prompt's bases are chosen as soon as the last of its verdicts is
    there, so that only the caches of base rollouts that will be expanded are kept.
    """
    r = session.config.rollout
    requests = []
    for prompt in prompts:
        fork, sampling = len(prompt.token_ids), session.sampling()
        branches = [
            Branch(fork, (BASE, step, prompt.position, n), r.max_response_tokens, sampling)
            for n in range(r.rollouts_per_prompt)
        ]
        requests.append(TrunkRequest(prompt.token_ids, branches))
    groups: dict[int, PromptGroup] = {}
    nothing = np.zeros(0, np.int32)
    grading = Grading(session, lambda index, _: (prompts[index].problem, nothing))

    def choose_when_graded(index: int, rollouts: list[Rollout], wait: bool) -> list[int] | None:
        verdicts = grading.verdicts([index])[0] if wait else grading.verdicts_if_done(index)
        if verdicts is None:
            return None
        prompt = prompts[index]
        rewards = rewards_of(verdicts)
        outcomes = [verdict.outcome for verdict in verdicts]
        group = PromptGroup(prompt.position, prompt.problem, prompt.token_ids, rollouts, rewards, outcomes=outcomes)
        group.kept = not (r.reject_degenerate and is_degenerate(rewards))
        group.chosen = choose_bases(session, step, group)
        groups[index] = group
        return group.chosen

    _, promoted = session.engine.sample(params, requests, choose_when_graded, grading.ended)
    for (index, base), trunk in promoted.items():
        groups[index].trunks[base] = trunk
    return [groups[index] for index in range(len(prompts))]


def is_degenerate(rewards: np.ndarray) -> bool:
    """All rewards equal: nothing to learn from (FR3E 3.2)."""
    return bool(np.all(rewards == rewards[0]))


def choose_bases(session: Session, step: int, group: PromptGroup) -> list[int]:
    """At most ``max_correct`` correct and ``max_wrong`` wrong base rollouts of a kept prompt, drawn at random.

    Responses of one token have no state between the prompt and their end, and are passed over.
    """
    explore = session.config.explore
    if not explore.enabled or not group.kept or group.success_rate > explore.max_success_rate:
        return []
    generator = session.generator(CHOICE, step, group.position)
    order = [int(n) for n in generator.permutation(len(group.rollouts)) if len(group.rollouts[n].token_ids) > 1]
    correct = [n for n in order if group.rewards[n] >= SUCCESS][: explore.max_correct]
    wrong = [n for n in order if group.rewards[n] < SUCCESS][: explore.max_wrong]
    return sorted(correct + wrong)


def base_trunks(session: Session, step: int, groups: list[PromptGroup]) -> list[TrainingTrunk]:
    """Kept base rollouts as training rows, each prompt a trunk: GRPO and its relatives."""
    if not groups:
        return []
    a = session.config.advantage
    rewards = np.stack([group.rewards for group in groups])
    advantages = group_advantages(rewards, estimator=a.base_estimator, unbiased_std=a.unbiased_std)
    trunks = []
    for group, group.advantages in zip(groups, advantages, strict=True):
        branches = [
            TrainingBranch(
                len(group.prompt_ids),
                rollout.token_ids,
                np.full(len(rollout.token_ids), advantage, np.float32),
                rollout.logprobs,
            )
            for rollout, advantage in zip(group.rollouts, group.advantages, strict=True)
        ]
        trunks.append(TrainingTrunk(group.prompt_ids, branches, step))
    return trunks
