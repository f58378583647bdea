"""Explore: anchors on the chosen base rollouts, rollouts from the states before them, values and advantages.

Each stage makes the next carrier (`fr3e_jax.loop.expansion`): `place_anchors` Anchored, `roll_out_states` Explored,
`assign_advantages` Credited, `explored_trunks` the trunks that train.
"""

from __future__ import annotations

import numpy as np

from fr3e_jax.configuration.schema import AdvantageConfig, ExploreConfig
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk, sampled_branch
from fr3e_jax.loop.expansion import (
    Anchored,
    Credited,
    Explored,
    PromptGroup,
    anchored_at,
    are_graded,
    by_state,
    graded_rewards,
    has_signal,
)
from fr3e_jax.loop.first_return import routes_of_trunk
from fr3e_jax.objectives.advantages import graded_values, ranged_rewards
from fr3e_jax.objectives.anchors import AnchorRules
from fr3e_jax.policy.network import Params
from fr3e_jax.problem import Problem
from fr3e_jax.programs.explore_programs import block_numbers, find_anchors, trajectory_advantages
from fr3e_jax.rollouts.noise import CHOICE, RETURN, STATE, Noise
from fr3e_jax.rollouts.requests import Branch, TrunkRequest
from fr3e_jax.session.grading import Grading, rewards_of
from fr3e_jax.session.session import Session
from fr3e_jax.verdict import UNGRADED

_OWN_GROUP = -1  # of a credited base, which shares no baseline with a state's rollouts


def anchor_rules(explore: ExploreConfig) -> AnchorRules:
    """The anchor rules of the settings."""
    return AnchorRules(
        num_anchors=explore.num_anchors,
        min_spacing=explore.min_spacing,
        include_anchor_token=explore.include_anchor_token,
    )


def place_anchors(session: Session, step: int, groups: list[PromptGroup]) -> list[Anchored]:
    """Place anchors on every chosen base rollout (FR3E, eq. 7); a base without a state to explore is left out.

    With ``explore.block_credit`` it stays: its response is one step and trains as one block. (VinePPO.)
    """
    explore, codec, noise = session.config.explore, session.texts.codec, session.noise
    rules, fresh = anchor_rules(explore), explore.initial_state == "fresh"
    bases = [(group, base) for group in groups for base in group.chosen]
    sources = [_anchor_source(explore, codec, noise, step, group, n) for group, n in bases]
    sampled = [group.rollouts[n].sampled for group, n in bases]
    anchored = []
    anchors_of_bases = find_anchors(sources, rules, selection=explore.anchor_selection, sampled=sampled)
    for (group, base), anchors in zip(bases, anchors_of_bases, strict=True):
        if len(anchors) or fresh or explore.block_credit:
            anchored.append(anchored_at(group, base, anchors.tolist(), rules, fresh=fresh))
    return anchored


def _anchor_source(
    explore: ExploreConfig, codec: TextCodec, noise: Noise, step: int, group: PromptGroup, base: int
) -> np.ndarray:
    """The array ``[T]`` of a base rollout that ``explore.anchor_selection`` reads."""
    rollout = group.rollouts[base]
    match explore.anchor_selection:
        case "logprob":
            return rollout.logprobs
        case "gradient":
            return rollout.magnitudes
        case "delimiter":
            return _step_borders(explore, codec, rollout.token_ids)
        case "random":
            return noise.generator(CHOICE, step, group.position, base).random(len(rollout.token_ids))
        case _:  # by entropy; evenly spaced anchors read only the length
            return rollout.entropies


def _step_borders(explore: ExploreConfig, codec: TextCodec, token_ids: np.ndarray) -> np.ndarray:
    """The tokens that may be anchors, because a reasoning step begins with them; bool ``[T]``.

    A step ends with a token whose own text contains ``explore.delimiter``, or with the last of several such tokens in a
    row. Special tokens have no text. With ``include_anchor_token`` the anchor is the token that ends the step: the
    state is the same.
    """
    delimiter = explore.delimiter.replace("\\n", "\n")  # a command line has no line breaks
    distinct, of_token = np.unique(token_ids, return_inverse=True)
    ends = np.array([delimiter in codec.decode([int(i)]) for i in distinct])[of_token]
    last = ends & ~np.append(ends[1:], False)
    return last if explore.include_anchor_token else np.append(False, last[:-1])


def roll_out_states(
    session: Session, params: Params, step: int, anchored: list[Anchored], rollouts: int | None = None
) -> list[Explored]:
    """Sample rollouts from each state of the cached bases (FR3E, eq. 11); grade base prefix + continuation.

    ``rollouts``: of each state; None: ``explore.rollouts_per_state``.
    """
    count = rollouts or session.config.explore.rollouts_per_state
    requests = [_request(session, step, base, count) for base in anchored]

    def case(index: int, branch: int) -> tuple[Problem, np.ndarray]:
        base = anchored[index]
        return base.group.problem, base.rollout.token_ids[: base.forks[branch // count]]

    grading = Grading(session.grader, case)
    results, _ = session.sampler.sample(params, requests, ended=grading.ended)
    graded = grading.verdicts(range(len(anchored)))
    return [
        Explored(
            **vars(base),
            rollouts=by_state(rollouts, count),
            rewards=by_state(rewards_of(verdicts), count),
            outcomes=by_state([verdict.outcome for verdict in verdicts], count),
        )
        for base, rollouts, verdicts in zip(anchored, results, graded, strict=True)
    ]


def _request(session: Session, step: int, anchored: Anchored, count: int) -> TrunkRequest:
    group, r, sampling = anchored.group, session.config.rollout, session.sampling()
    # A base may be explored and visited in one step, and its states have the same numbers then. Without Explore the
    # names are free, and runs with returns alone sample what they always did.
    kind = RETURN if anchored.parent and session.config.explore.enabled else STATE
    branches = [
        Branch(
            fork=len(group.prompt_ids) + fork,
            stream=(kind, step, group.position, anchored.base_number, state, m),
            max_tokens=r.max_response_tokens - fork,
            sampling=sampling,
            prefix=anchored.rollout.head(fork),
        )
        for state, fork in zip(anchored.states, anchored.forks, strict=True)
        for m in range(count)
    ]
    return TrunkRequest(group.trunks[anchored.base], branches, group.problem)


def assign_advantages(
    explore: ExploreConfig, a: AdvantageConfig, explored: list[Explored], *, taught: bool = False
) -> list[Credited]:
    """Compute V(S_j), α_j and A' of every explored base (FR3E, eq. 13-15), before any of its states is filtered.

    ``taught``: a teacher speaks about all of them, so that none is filtered.
    """
    if not explored:
        return []
    rewards, mask = _padded_rewards(explore, explored)
    of_bases = (
        np.array([base.group.mean_reward for base in explored]),
        np.array([base.group.rewards[base.base] for base in explored]),
        _root_values(explored),
    )
    advantages, values, alphas, credit = trajectory_advantages(
        ranged_rewards(rewards, a.reward_range),
        mask,
        *(ranged_rewards(x, a.reward_range) for x in of_bases),
        estimator=a.state_estimator,
        unbiased_std=a.unbiased_std,
        modulation=a.modulation,
        fresh=explore.initial_state == "fresh",
    )
    values = graded_values(values, a.reward_range)
    credited = []
    for row, base in enumerate(explored):
        sizes = [len(state) for state in base.rewards]
        state_advantages = [advantages[row, j, :m] for j, m in zip(base.states, sizes, strict=True)]
        credited.append(
            Credited(
                **vars(base),
                advantages=state_advantages,
                values=values[row, base.states],
                alphas=alphas[row, base.states],
                initial_value=float(values[row, 0]),
                block_credit=credit[row, : len(base.anchors) + 1].tolist(),
                trained=[
                    explore.train_states and (taught or _has_signal(a, *state))
                    for state in zip(graded_rewards(base), state_advantages, strict=True)
                ],
            )
        )
    return credited


def _padded_rewards(explore: ExploreConfig, explored: list[Explored]) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and their mask ``[bases, J, M]``; J and M are the same in all rounds of a run."""
    rewards = np.zeros((len(explored), explore.num_anchors + 1, explore.rollouts_per_state), np.float32)
    mask = np.zeros(rewards.shape, bool)
    for row, base in enumerate(explored):
        for state, earned, outcomes in zip(base.states, base.rewards, base.outcomes, strict=True):
            rewards[row, state], mask[row, state] = earned, are_graded(outcomes)
    return rewards, mask


def _root_values(explored: list[Explored]) -> np.ndarray:
    """Mean reward of all leaves of each base's prompt: base rollouts, and rollouts from their states; ``[bases]``."""
    leaves: dict[int, list[np.ndarray]] = {}
    for base in explored:
        leaves.setdefault(id(base.group), [base.group.rewards[base.group.graded]]).extend(graded_rewards(base))
    values = []
    for base in explored:
        earned, base_reward = np.concatenate(leaves[id(base.group)]), base.group.rewards[base.base]
        values.append(base_reward + np.mean(earned - base_reward))  # exact if all rewards are equal
    return np.array(values)


def _has_signal(advantage: AdvantageConfig, rewards: np.ndarray, advantages: np.ndarray) -> bool:
    """Return True if a state's rollouts can train (FR3E's second filter).

    With a tree estimator, equal leaves still have an advantage over the rest of the tree.
    """
    if advantage.state_estimator == "tree":
        return bool(np.any(advantages))
    return has_signal(rewards)


def explored_trunks(
    explore: ExploreConfig, step: int, credited: list[Credited], *, taught: bool = False
) -> list[TrainingTrunk]:
    """Training trunks: base rollouts, with the new tokens of their trained states' rollouts as branches.

    With ``explore.block_credit`` the base's own response is a branch too, if a block has credit or it is ``taught``.
    """
    trunks = []
    for base in credited:
        prompt = base.group.prompt_ids
        branches = [
            sampled_branch(
                rollout,
                len(prompt) + fork,
                advantage,
                reward=float(reward),
                group=state_number,
                right=outcome == "right",
            )
            for state_number, fork, state, row, rewards, outcomes, trained in zip(
                *(base.states, base.forks, base.rollouts, base.advantages, base.rewards, base.outcomes, base.trained),
                strict=True,
            )
            if trained
            for rollout, advantage, reward, outcome in zip(state, row, rewards, outcomes, strict=True)
            if outcome not in UNGRADED
        ]
        if explore.block_credit and base.block_credit and (taught or any(base.block_credit)):
            branches.append(_credited_base(anchor_rules(explore), base))
        if branches:
            ids = np.concatenate([prompt, base.rollout.token_ids])
            routes = routes_of_trunk([rollout for state in base.rollouts for rollout in state], len(ids))
            if routes is None:  # no state was explored
                routes = base.rollout.routes_from(len(prompt))
            trunks.append(TrainingTrunk(ids, branches, step, prompt_tokens=len(prompt), routes=routes))
    return trunks


def _credited_base(rules: AnchorRules, credited: Credited) -> TrainingBranch:
    """The base response as a branch of its prompt, each block with its advantage."""
    base = credited.rollout
    states = zip(credited.states, credited.forks, credited.graded_states, strict=True)
    cuts = [fork for state, fork, graded in states if state > 0 and graded]
    block = block_numbers(cuts, len(base.token_ids), rules.num_anchors + 1)
    return sampled_branch(
        base,
        len(credited.group.prompt_ids),
        np.asarray(credited.block_credit, np.float32)[block],
        reward=float(credited.group.rewards[credited.base]),
        group=_OWN_GROUP,
        right=bool(credited.group.right[credited.base]),
        on_trunk=True,
    )
