"""First Return: sample and grade base rollouts, reject prompts without signal, choose the bases to expand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from fr3e_jax.configuration.schema import AdvantageConfig, Config, ExploreConfig
from fr3e_jax.data.stream import Prompt
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk, sampled_branch
from fr3e_jax.loop.expansion import PromptGroup
from fr3e_jax.objectives.advantages import ranged_rewards
from fr3e_jax.objectives.filters import balanced_group, has_both_kinds, is_degenerate
from fr3e_jax.objectives.selection import soft_overlong_penalty
from fr3e_jax.objectives.user_objectives import UserObjective, user_estimator
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.explore_programs import group_advantages
from fr3e_jax.programs.size_buckets import power_of_two
from fr3e_jax.rollouts.noise import BASE, CHOICE, Noise
from fr3e_jax.rollouts.requests import Branch, Rollout, TrunkRequest
from fr3e_jax.session.grading import Grading, rewards_of
from fr3e_jax.session.session import Session
from fr3e_jax.verdict import UNGRADED, Verdict


def first_return(
    session: Session,
    params: Params,
    step: int,
    prompts: list[Prompt],
    replayed: Mapping[int, TrainingBranch] = MappingProxyType({}),
    counts: Sequence[int] | None = None,
) -> list[PromptGroup]:
    """Sample and grade the base rollouts of ``prompts``, reject prompts without signal, choose the bases to expand.

    With several ``rollout.sampling_rounds``, prompts that have too few rollouts of either kind are sampled again, and a
    balanced part of each group trains. (Reinforce-Ada, Xiong et al. 2025.) The groups have the order of ``prompts``.

    ``replayed``: earlier successes by position, each of which takes the place of a rollout (`fr3e_jax.loop.replay`).
    ``counts``: rollouts of each prompt; None: ``rollouts_per_prompt``.
    """
    rollout, count = session.config.rollout, session.config.rollout.rollouts_per_prompt
    counts = [count] * len(prompts) if counts is None else counts
    fresh = [n - (prompt.position in replayed) for n, prompt in zip(counts, prompts, strict=True)]
    groups = _round_of_groups(session, params, base_requests(session, step, prompts, fresh), step, prompts, replayed)
    if rollout.sampling_rounds == 1:
        return groups
    for number in range(1, rollout.sampling_rounds):
        lacking = [n for n, group in enumerate(groups) if not has_both_kinds(group.right[group.graded], count)]
        if not lacking:
            break
        once_more = [prompts[n] for n in lacking]
        requests = base_requests(session, step, once_more, first=number * count)
        again = _round_of_groups(session, params, requests, step, once_more)
        for n, group in zip(lacking, again, strict=True):
            groups[n] = _joined(session.config, groups[n], group)
    for group in groups:
        graded = np.flatnonzero(group.graded)
        group.trained = graded[balanced_group(group.right[graded], count)].tolist()
    return groups


def _joined(config: Config, group: PromptGroup, more: PromptGroup) -> PromptGroup:
    """A prompt's group with the rollouts of a later round behind its own."""
    rewards, outcomes = np.concatenate([group.rewards, more.rewards]), group.outcomes + more.outcomes
    joined = replace(group, rollouts=group.rollouts + more.rollouts, rewards=rewards, outcomes=outcomes)
    joined.kept = _has_signal(config, joined)
    return joined


def _has_signal(config: Config, group: PromptGroup) -> bool:
    """Return whether a prompt stays: its rollouts differ, or degenerate groups are not rejected."""
    # The estimator of pass@k reads which responses are right, the others read rewards.
    reads_verdicts = config.advantage.base_estimator == "pass_at_k" and not config.explore.enabled
    rewards, right, _, graded = _members(group)
    if not graded.any():
        return False
    degenerate = is_degenerate((right if reads_verdicts else rewards)[graded])
    return not (config.drops_equal_rewards and degenerate)


def _round_of_groups(
    session: Session,
    params: Params,
    requests: list[TrunkRequest],
    step: int,
    prompts: list[Prompt],
    replayed: Mapping[int, TrainingBranch] = MappingProxyType({}),
) -> list[PromptGroup]:
    """The prompts' groups of one round of rollouts.

    Rollouts are graded while others still decode. A prompt's bases are chosen as soon as its last verdict arrives:
    only the caches of chosen bases are kept.
    """
    config = session.config
    groups: dict[int, PromptGroup] = {}
    nothing = np.zeros(0, np.int32)
    grading = Grading(session.grader, lambda index, _: (prompts[index].problem, nothing))

    def choose_when_graded(index: int, rollouts: list[Rollout], wait: bool) -> list[int] | None:
        """Make a prompt's group once it is graded and return its chosen bases; None: a verdict is missing."""
        verdicts = grading.verdicts([index])[0] if wait else grading.verdicts_if_done(index)
        return None if verdicts is None else choose(index, rollouts, verdicts)

    def choose(index: int, rollouts: list[Rollout], verdicts: list[Verdict]) -> list[int]:
        prompt = prompts[index]
        rewards = rewards_of(verdicts)
        outcomes = [verdict.outcome for verdict in verdicts]
        group = PromptGroup(prompt.position, prompt.problem, prompt.token_ids, rollouts, rewards, outcomes=outcomes)
        group.replayed = replayed.get(prompt.position)
        group.kept = _has_signal(config, group)
        group.chosen = choose_bases(config.explore, session.noise, step, group)
        groups[index] = group
        return group.chosen

    if not config.explore.enabled:
        # Nothing will be promoted, so lanes keep no hidden states and wait for no verdict.
        rollouts_of_prompts, _ = session.sampler.sample(params, requests, ended=grading.ended)
        for index, verdicts in enumerate(grading.verdicts(range(len(prompts)))):
            choose(index, rollouts_of_prompts[index], verdicts)
        return [groups[index] for index in range(len(prompts))]
    _, promoted = session.sampler.sample(params, requests, choose_when_graded, grading.ended)
    for (index, base), trunk in promoted.items():
        groups[index].trunks[base] = trunk
    return [groups[index] for index in range(len(prompts))]


def base_requests(
    session: Session, step: int, prompts: list[Prompt], counts: Sequence[int] | None = None, first: int = 0
) -> list[TrunkRequest]:
    """A request for each prompt, with responses as branches.

    Args:
      session: the parts of the run.
      step: names their noise.
      prompts: the prompts.
      counts: responses of each; None: ``rollouts_per_prompt``.
      first: the number of the first.
    """
    r, sampling, requests = session.config.rollout, session.sampling(), []
    for prompt, count in zip(prompts, counts or [r.rollouts_per_prompt] * len(prompts), strict=True):
        fork = len(prompt.token_ids)
        branches = [
            Branch(fork, (BASE, step, prompt.position, n), r.max_response_tokens, sampling)
            for n in range(first, first + count)
        ]
        requests.append(TrunkRequest(prompt.token_ids, branches, prompt.problem))
    return requests


def choose_bases(explore: ExploreConfig, noise: Noise, step: int, group: PromptGroup) -> list[int]:
    """Indices of at most ``max_correct`` correct and ``max_wrong`` wrong base rollouts of a kept prompt, ascending.

    The choice is random. Responses of one token are passed over: they have no state between the prompt and their end.
    """
    if not explore.enabled or not group.kept:
        return []
    generator = noise.generator(CHOICE, step, group.position)
    right, graded = group.right, group.graded
    order = [int(n) for n in generator.permutation(len(right)) if graded[n] and len(group.rollouts[n].token_ids) > 1]
    correct = [n for n in order if right[n]][: explore.max_correct]
    wrong = [n for n in order if not right[n]][: explore.max_wrong]
    return sorted(correct + wrong)


def estimator_rewards(a: AdvantageConfig, longest: int, rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rewards in the range of the advantage estimators, less a penalty on ``lengths`` near the cap ``longest``.

    ``lengths``: tokens of the whole responses, in the shape of ``rewards``.
    """
    read = ranged_rewards(rewards, a.reward_range)
    if not a.overlong_margin:
        return read
    return read + np.asarray(soft_overlong_penalty(lengths, max_length=longest, margin=a.overlong_margin))


def routes_of_trunk(rollouts: Sequence[Rollout], length: int) -> np.ndarray | None:
    """Recorded routes of the first ``length`` tokens of the rollouts' trunk, int ``[length, Q]``; None: unknown."""
    recorded = [rollout.trunk_routes for rollout in rollouts if rollout.trunk_routes is not None]
    return recorded[0][:length] if recorded else None


def base_trunks(config: Config, step: int, groups: list[PromptGroup]) -> list[TrainingTrunk]:
    """Give the base rollouts of kept prompts their advantages; return them as branches of their prompts (GRPO).

    The baseline of a prompt is that of all its rollouts, also of those that do not train, and of a replayed success.
    """
    if not groups:
        return []
    a, (graded, right, lengths, mask) = config.advantage, _columns(groups)
    estimator = user_estimator(a.base_estimator)
    rewards = estimator_rewards(a, config.rollout.max_response_tokens, graded, lengths)
    options = {"estimator": a.base_estimator, "unbiased_std": a.unbiased_std, "k": a.pass_at_k}
    if a.base_estimator == "gae":
        advantages = np.zeros(rewards.shape, np.float32)  # replaced once the critic has scored the full batch
    elif estimator is not None:
        advantages = [_estimated(estimator, *row) for row in zip(groups, rewards, right, lengths, mask, strict=True)]
    else:
        advantages = group_advantages(rewards, mask, right=right, **options)
    trunks = []
    for group, prompt_advantages, read in zip(groups, advantages, rewards, strict=True):
        if estimator is not None:
            group.trained = [
                n for n in range(len(group.rollouts)) if group.trains(n) and not np.isnan(prompt_advantages[n])
            ]
        group.advantages, prompt = prompt_advantages[: len(group.rollouts)], group.prompt_ids
        branches = [
            sampled_branch(rollout, len(prompt), group.advantages[n], reward=float(read[n]), right=bool(group.right[n]))
            for n, rollout in enumerate(group.rollouts)
            if group.trains(n)
        ]
        last = len(group.rollouts)
        if group.replayed is not None and not np.isnan(prompt_advantages[last]):
            constant = np.full(len(group.replayed.token_ids), prompt_advantages[last], np.float32)
            branches.append(replace(group.replayed, advantages=constant, reward=float(read[last])))
        routes = routes_of_trunk(group.rollouts, len(prompt))
        trunks.append(TrainingTrunk(prompt, branches, step, prompt_tokens=len(prompt), routes=routes))
    return trunks


def _estimated(
    estimator: UserObjective, group: PromptGroup, rewards: np.ndarray, right: np.ndarray, lengths: np.ndarray, mask
) -> np.ndarray:
    """Advantages of a prompt's rollouts by the user's estimator, which sees the graded ones; NaN: does not train."""
    outcomes = [outcome for outcome in group.outcomes if outcome not in UNGRADED]
    replayed = [] if group.replayed is None else ["right"]
    values = {"rewards": rewards[mask], "right": right[mask], "lengths": lengths[mask]}
    advantages = np.full(len(mask), np.nan)
    advantages[mask] = estimator.group_advantages(values | {"outcomes": [*outcomes, *replayed]})
    return advantages


def _members(group: PromptGroup) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, which are right, lengths, and which are graded, of a prompt's rollouts and of a replayed success."""
    lengths = np.array([len(rollout.token_ids) for rollout in group.rollouts])
    if (replayed := group.replayed) is None:
        return group.rewards, group.right, lengths, group.graded
    last = replayed.reward, replayed.right, len(replayed.token_ids), True
    return tuple(
        np.append(*each) for each in zip((group.rewards, group.right, lengths, group.graded), last, strict=True)
    )


def _columns(groups: list[PromptGroup]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, which are right, lengths, and which are graded, ``[P, R]``; R is a power of two if numbers differ."""
    members = [_members(group) for group in groups]
    counts = np.array([len(rewards) for rewards, *_ in members])
    widest = int(counts.max())
    mask = np.arange(widest if (counts == widest).all() else power_of_two(widest)) < counts[:, None]

    def filled(rows: Sequence[np.ndarray]) -> np.ndarray:
        values = np.concatenate(rows)
        out = np.zeros(mask.shape, values.dtype)
        out[mask] = values
        return out

    rewards, right, lengths, graded = map(filled, zip(*members, strict=True))
    return rewards, right, lengths, graded
