"""Explore: anchors on the chosen base rollouts, rollouts from the states before them, values and advantages."""

from __future__ import annotations

import numpy as np

from fr3e_jax.data.task import Problem
from fr3e_jax.loop.experience import Expansion, PromptGroup, TrainingBranch, TrainingTrunk
from fr3e_jax.loop.first_return import is_degenerate
from fr3e_jax.loop.grading import Grading, rewards_of
from fr3e_jax.loop.requests import Branch, TrunkRequest
from fr3e_jax.loop.session import CHOICE, STATE, Session
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.exploration import find_anchors, trajectory_advantages


def place_anchors(session: Session, step: int, groups: list[PromptGroup]) -> list[Expansion]:
    """Anchors of every chosen base rollout (FR3E, eq. 7) and the states they open."""
    explore = session.config.explore
    bases = [(group, base) for group in groups for base in group.chosen]
    sources = [_anchor_source(session, step, group, base) for group, base in bases]
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
        positions = [int(anchor) for anchor in anchors]
        forks = [anchor + explore.include_anchor_token for anchor in positions]
        states = list(range(1, len(positions) + 1))
        if explore.initial_state == "fresh":
            states, forks = [0, *states], [0, *forks]
        if states:
            expansions.append(Expansion(group, base, positions, states, forks))
    return expansions


def _anchor_source(session: Session, step: int, group: PromptGroup, base: int) -> np.ndarray:
    rollout = group.rollouts[base]
    match session.config.explore.anchor_selection:
        case "logprob":
            return rollout.logprobs
        case "gradient":
            return rollout.magnitudes
        case "random":
            return session.generator(CHOICE, step, group.position, base).random(len(rollout.token_ids))
        case _:  # evenly spaced anchors read the length only
            return rollout.entropies


def roll_out_states(session: Session, params: Params, step: int, expansions: list[Expansion]) -> None:
    """M rollouts from each state (FR3E, eq. 11), from the cached base; graded on base prefix + continuation."""
    requests = [_request(session, step, expansion) for expansion in expansions]
    m = session.config.explore.rollouts_per_state

    def case(index: int, branch: int) -> tuple[Problem, np.ndarray]:
        expansion = expansions[index]
        base_ids = expansion.group.rollouts[expansion.base].token_ids
        return expansion.group.problem, base_ids[: expansion.forks[branch // m]]

    grading = Grading(session, case)
    results, _ = session.engine.sample(params, requests, ended=grading.ended)
    graded = grading.verdicts(range(len(expansions)))
    for expansion, rollouts, verdicts in zip(expansions, results, graded, strict=True):
        expansion.rollouts = [rollouts[i : i + m] for i in range(0, len(rollouts), m)]
        expansion.rewards = rewards_of(verdicts).reshape(len(expansion.states), m)
        expansion.outcomes = [[v.outcome for v in verdicts[i : i + m]] for i in range(0, len(rollouts), m)]


def _request(session: Session, step: int, expansion: Expansion) -> TrunkRequest:
    group, cap, sampling = expansion.group, session.config.rollout.max_response_tokens, session.sampling()
    branches = [
        Branch(
            fork=len(group.prompt_ids) + fork,
            stream=(STATE, step, group.position, expansion.base_number, state, m),
            max_tokens=cap - fork,
            sampling=sampling,
        )
        for state, fork in zip(expansion.states, expansion.forks, strict=True)
        for m in range(session.config.explore.rollouts_per_state)
    ]
    return TrunkRequest(group.trunks[expansion.base], branches)


def assign_advantages(session: Session, expansions: list[Expansion]) -> None:
    """V(S_j), alpha_j and A' of every expansion (FR3E, eq. 13-15), from all its states, before any is filtered."""
    if not expansions:
        return
    explore, a = session.config.explore, session.config.advantage
    shape = (len(expansions), explore.num_anchors + 1, explore.rollouts_per_state)
    rewards, mask = np.zeros(shape, np.float32), np.zeros(shape, bool)
    for row, expansion in enumerate(expansions):
        rewards[row, expansion.states], mask[row, expansion.states] = expansion.rewards, True
    advantages, values, alphas, credit = trajectory_advantages(
        rewards,
        mask,
        np.array([expansion.group.rewards.mean() for expansion in expansions]),
        np.array([expansion.group.rewards[expansion.base] for expansion in expansions], np.float32),
        estimator=a.state_estimator,
        unbiased_std=a.unbiased_std,
        modulation=a.modulation,
        initial=a.initial_modulation,
        fresh=explore.initial_state == "fresh",
    )
    for row, expansion in enumerate(expansions):
        expansion.advantages = advantages[row, expansion.states]
        expansion.values, expansion.alphas = values[row, expansion.states], alphas[row, expansion.states]
        expansion.initial_value = float(values[row, 0])
        expansion.block_credit = credit[row, : len(expansion.anchors) + 1].tolist()
        expansion.trained = [not is_degenerate(state) for state in expansion.rewards]


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
            )
            for fork, state, row, trained in zip(
                expansion.forks, expansion.rollouts, expansion.advantages, expansion.trained, strict=True
            )
            if trained
            for rollout, advantage in zip(state, row, strict=True)
        ]
        if session.config.explore.block_credit and not expansion.parent:  # an archived base is of older weights
            branches.append(_credited_base(session, expansion))
        if branches:
            trunks.append(TrainingTrunk(np.concatenate([prompt, base.token_ids]), branches, step))
    return trunks


def _credited_base(session: Session, expansion: Expansion) -> TrainingBranch:
    """The base response as a branch of its prompt, each block with the advantage V(S_j+1) - V(S_j)."""
    base = expansion.group.rollouts[expansion.base]
    cuts = [anchor + session.config.explore.include_anchor_token for anchor in expansion.anchors]
    block = np.searchsorted(cuts, np.arange(len(base.token_ids)), side="right")
    advantages = np.asarray(expansion.block_credit, np.float32)[block]
    return TrainingBranch(len(expansion.group.prompt_ids), base.token_ids, advantages, base.logprobs)
