"""Explore: anchors on the chosen base rollouts, rollouts from the states before them, values and advantages."""

from __future__ import annotations

import numpy as np

from fr3e_jax.configuration.options import configured_call
from fr3e_jax.configuration.schema import TREE_ESTIMATORS
from fr3e_jax.data.problem import Problem
from fr3e_jax.learning.experience import Expansion, PromptGroup, TrainingBranch, TrainingTrunk
from fr3e_jax.loop.first_return import is_degenerate
from fr3e_jax.loop.grading import Grading, rewards_of
from fr3e_jax.loop.session import CHOICE, STATE, Session
from fr3e_jax.objectives.advantages import graded_values, ranged_rewards
from fr3e_jax.objectives.allocation import divide_rollouts
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.exploration import find_anchors, trajectory_advantages
from fr3e_jax.rollouts.requests import Branch, Rollout, TrunkRequest

_OWN_GROUP = -1  # of a credited base, which no state's rollouts share a baseline with


def place_anchors(session: Session, step: int, groups: list[PromptGroup]) -> list[Expansion]:
    """Anchors of every chosen base rollout (FR3E, eq. 7) and the states they open."""
    explore = session.config.explore
    bases = [(group, base) for group in groups for base in group.chosen]
    sources = [_drawn_only(session, group.rollouts[n], _anchor_source(session, step, group, n)) for group, n in bases]
    found = find_anchors(
        sources,
        selection=explore.anchor_selection,
        num_anchors=explore.num_anchors,
        min_spacing=explore.min_spacing,
        exclude_first=explore.exclude_first,
        exclude_last=explore.exclude_last,
        include_anchor_token=explore.include_anchor_token,
    )
    expansions = []
    for (group, base), anchors in zip(bases, found, strict=True):
        drawn = group.rollouts[base].drawn  # a state within a tool's answer leaves the policy nothing to choose
        positions = [int(a) for a in anchors if drawn[a] and drawn[a + explore.include_anchor_token]]
        forks = [anchor + explore.include_anchor_token for anchor in positions]
        states = list(range(1, len(positions) + 1))
        if explore.initial_state == "fresh":
            states, forks = [0, *states], [0, *forks]
        if states:
            expansions.append(Expansion(group, base, positions, states, forks))
    return expansions


def _drawn_only(session: Session, rollout: Rollout, source: np.ndarray) -> np.ndarray:
    """``source`` with its worst value where a tool wrote the token that the state leaves to be drawn, or the anchor."""
    if rollout.given is None:
        return source
    explore, barred = session.config.explore, rollout.given
    if explore.include_anchor_token:
        barred = barred | np.append(barred[1:], False)
    return np.where(barred, np.inf if explore.anchor_selection == "logprob" else -np.inf, source)


def _anchor_source(session: Session, step: int, group: PromptGroup, base: int) -> np.ndarray:
    rollout = group.rollouts[base]
    match session.config.explore.anchor_selection:
        case "logprob":
            return rollout.logprobs
        case "gradient":
            return rollout.magnitudes
        case "delimiter":
            return _step_borders(session, rollout.token_ids)
        case "random":
            return session.generator(CHOICE, step, group.position, base).random(len(rollout.token_ids))
        case _:  # evenly spaced anchors read the length only
            return rollout.entropies


def _step_borders(session: Session, token_ids: np.ndarray) -> np.ndarray:
    """1 at the tokens that may be anchors, those that a step of reasoning begins with, else 0.

    A step ends with a token whose own text contains ``explore.delimiter``, the last one where several follow each
    other; special tokens have no text. With ``include_anchor_token`` that token itself is the anchor: the state is the
    same.
    """
    explore, codec = session.config.explore, session.codec
    delimiter = explore.delimiter.replace("\\n", "\n")  # a command line has no line breaks
    distinct, of_token = np.unique(token_ids, return_inverse=True)
    ends = np.array([delimiter in codec.decode([int(i)]) for i in distinct])[of_token]
    last = ends & ~np.append(ends[1:], False)
    return (last if explore.include_anchor_token else np.append(False, last[:-1])).astype(np.float32)


def allocate(session: Session, expansions: list[Expansion]) -> None:
    """How many rollouts each state gets: M, or with ``allocation=success_rate`` a share of the same total.

    That share grows with how often the prompt's base rollouts failed (`divide_rollouts`).
    """
    explore = session.config.explore
    needs = [1.0 - expansion.group.success_rate for expansion in expansions for _ in expansion.states]
    total = explore.rollouts_per_state * len(needs)
    counts = np.full(len(needs), explore.rollouts_per_state)
    if explore.allocation == "success_rate":
        counts = divide_rollouts(needs, total, least=explore.allocation_least, most=explore.allocation_most)
    remaining = iter(counts.tolist())
    for expansion in expansions:
        expansion.counts = [next(remaining) for _ in expansion.states]


def roll_out_states(session: Session, params: Params, step: int, expansions: list[Expansion]) -> None:
    """Rollouts from each state (FR3E, eq. 11), from the cached base; graded on base prefix + continuation."""
    allocate(session, expansions)
    requests = [_request(session, step, expansion) for expansion in expansions]
    forks = [np.repeat(expansion.forks, expansion.counts) for expansion in expansions]

    def case(index: int, branch: int) -> tuple[Problem, np.ndarray]:
        expansion = expansions[index]
        base_ids = expansion.group.rollouts[expansion.base].token_ids
        return expansion.group.problem, base_ids[: forks[index][branch]]

    grading = Grading(session, case)
    results, _ = session.sample(params, requests, ended=grading.ended)
    graded = grading.verdicts(range(len(expansions)))
    for expansion, rollouts, verdicts in zip(expansions, results, graded, strict=True):
        expansion.rollouts = expansion.by_state(rollouts)
        expansion.rewards = expansion.by_state(rewards_of(verdicts))
        expansion.outcomes = expansion.by_state([verdict.outcome for verdict in verdicts])


def _request(session: Session, step: int, expansion: Expansion) -> TrunkRequest:
    group, cap, sampling = expansion.group, session.config.rollout.max_response_tokens, session.sampling()
    branches = [
        Branch(
            fork=len(group.prompt_ids) + fork,
            stream=(STATE, step, group.position, expansion.base_number, state, m),
            max_tokens=cap - fork,
            sampling=sampling,
            prefix=session.toolbox and group.rollouts[expansion.base].head(fork),
        )
        for state, fork, count in zip(expansion.states, expansion.forks, expansion.counts, strict=True)
        for m in range(count)
    ]
    return TrunkRequest(group.trunks[expansion.base], branches)


def assign_advantages(session: Session, expansions: list[Expansion]) -> None:
    """V(S_j), alpha_j and A' of every expansion (FR3E, eq. 13-15), from all its states, before any is filtered."""
    if not expansions:
        return
    explore, a = session.config.explore, session.config.advantage
    rewards, mask = _padded_rewards(session, expansions)
    of_bases = (
        np.array([expansion.group.rewards.mean() for expansion in expansions]),
        np.array([expansion.group.rewards[expansion.base] for expansion in expansions]),
        _root_values(expansions),
    )
    advantages, values, alphas, credit = trajectory_advantages(
        ranged_rewards(rewards, a.reward_range),
        mask,
        *(ranged_rewards(x, a.reward_range) for x in of_bases),
        estimator=a.state_estimator,
        tree=configured_call(a, a.state_estimator),
        unbiased_std=a.unbiased_std,
        modulation=a.modulation,
        initial=a.initial_modulation,
        fresh=explore.initial_state == "fresh",
    )
    values = graded_values(values, a.reward_range)
    for row, expansion in enumerate(expansions):
        sizes = [len(state) for state in expansion.rewards]
        expansion.advantages = [advantages[row, j, :m] for j, m in zip(expansion.states, sizes, strict=True)]
        expansion.values, expansion.alphas = values[row, expansion.states], alphas[row, expansion.states]
        expansion.initial_value = float(values[row, 0])
        expansion.block_credit = credit[row, : len(expansion.anchors) + 1].tolist()
        expansion.trained = [
            explore.train_states and _has_signal(session, *state)
            for state in zip(expansion.rewards, expansion.advantages, strict=True)
        ]


def _padded_rewards(session: Session, expansions: list[Expansion]) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and their mask ``[R, J, M]``, of one size whatever a round has."""
    explore = session.config.explore
    most = explore.allocation_most if explore.allocation == "success_rate" else explore.rollouts_per_state
    rewards = np.zeros((len(expansions), explore.num_anchors + 1, most), np.float32)
    mask = np.zeros(rewards.shape, bool)
    for row, expansion in enumerate(expansions):
        for state, earned in zip(expansion.states, expansion.rewards, strict=True):
            rewards[row, state, : len(earned)], mask[row, state, : len(earned)] = earned, True
    return rewards, mask


def _root_values(expansions: list[Expansion]) -> np.ndarray:
    """Mean reward of all the leaves of each expansion's prompt: base rollouts, and those of its expanded bases."""
    leaves: dict[int, list[np.ndarray]] = {}
    for expansion in expansions:
        leaves.setdefault(id(expansion.group), [expansion.group.rewards]).extend(expansion.rewards)
    found = []
    for expansion in expansions:
        earned, own = np.concatenate(leaves[id(expansion.group)]), expansion.group.rewards[expansion.base]
        found.append(own + np.mean(earned - own))  # exact where all are equal
    return np.array(found)


def _has_signal(session: Session, rewards: np.ndarray, advantages: np.ndarray) -> bool:
    """FR3E's second filter: of a tree's leaves, equal ones have an advantage over the rest of the tree."""
    if session.config.advantage.state_estimator in TREE_ESTIMATORS:
        return bool(np.any(advantages))
    return not is_degenerate(rewards)


def explored_trunks(session: Session, step: int, expansions: list[Expansion]) -> list[TrainingTrunk]:
    """The new tokens of every rollout of a mixed state, on the base rollout as trunk (FR3E's second filter)."""
    trunks = []
    for expansion in expansions:
        prompt, base = expansion.group.prompt_ids, expansion.group.rollouts[expansion.base]
        branches = [
            TrainingBranch(
                len(prompt) + fork,
                rollout.token_ids,
                np.full(len(rollout.token_ids), advantage, np.float32),
                rollout.logprobs,
                reward=float(reward),
                finished=rollout.finished,
                group=number,
                loss_mask=rollout.loss_mask,
            )
            for number, fork, state, row, rewards, trained in zip(
                expansion.states,
                expansion.forks,
                expansion.rollouts,
                expansion.advantages,
                expansion.rewards,
                expansion.trained,
                strict=True,
            )
            if trained
            for rollout, advantage, reward in zip(state, row, rewards, strict=True)
        ]
        # An archived base is of older weights; blocks without credit are filtered as states without signal are.
        if session.config.explore.block_credit and not expansion.parent and any(expansion.block_credit):
            branches.append(_credited_base(session, expansion))
        if branches:
            ids = np.concatenate([prompt, base.token_ids])
            trunks.append(TrainingTrunk(ids, branches, step, prompt_tokens=len(prompt)))
    return trunks


def _credited_base(session: Session, expansion: Expansion) -> TrainingBranch:
    """The base response as a branch of its prompt, each block with its advantage."""
    base = expansion.group.rollouts[expansion.base]
    cuts = [anchor + session.config.explore.include_anchor_token for anchor in expansion.anchors]
    block = np.searchsorted(cuts, np.arange(len(base.token_ids)), side="right")
    advantages = np.asarray(expansion.block_credit, np.float32)[block]
    return TrainingBranch(
        len(expansion.group.prompt_ids),
        base.token_ids,
        advantages,
        base.logprobs,
        reward=float(expansion.group.rewards[expansion.base]),
        finished=base.finished,
        group=_OWN_GROUP,
        loss_mask=base.loss_mask,
    )
