"""The carriers of a step, each complete when it is made: a prompt's group, then Anchored -> Explored -> Credited.

Dimension key: R base rollouts of a prompt, M rollouts of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fr3e_jax.learning.experience import TrainingBranch
from fr3e_jax.objectives.anchors import AnchorRules
from fr3e_jax.objectives.filters import is_degenerate
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import plain_outcome
from fr3e_jax.rollouts.requests import CachedTrunk, Rollout
from fr3e_jax.verdict import UNGRADED, Outcome


@dataclass
class PromptGroup:
    """A prompt with its base rollouts, graded (First Return)."""

    position: int  # in the prompt stream; names the sampling noise
    problem: Problem
    prompt_ids: np.ndarray
    rollouts: list[Rollout]
    rewards: np.ndarray  # [R]
    kept: bool = True  # false: rejected, because all rewards are equal
    outcomes: list[Outcome] = field(default_factory=list)  # [R], how each reward came about; empty: `plain_outcome`
    chosen: list[int] = field(default_factory=list)  # base rollouts to expand
    trunks: dict[int, CachedTrunk | np.ndarray] = field(default_factory=dict)  # of the chosen bases; ids: not cached
    advantages: np.ndarray | None = None  # [R], where the base rollouts train
    trained: Sequence[int] | None = None  # which of them train; None: all
    replayed: TrainingBranch | None = None  # an earlier success, which trains with them; its reward is as graded

    def __post_init__(self):
        if not self.outcomes:
            self.outcomes = [plain_outcome(reward) for reward in self.rewards]

    @property
    def right(self) -> np.ndarray:
        """bool ``[R]``, the base rollouts that the verifier accepted."""
        return are_right(self.outcomes)

    @property
    def graded(self) -> np.ndarray:
        """bool ``[R]``, the base rollouts that have a reward; the others are in no mean, no baseline and no loss."""
        return are_graded(self.outcomes)

    def trains(self, index: int) -> bool:
        """Return whether this base rollout is among those that train."""
        return self.outcomes[index] not in UNGRADED and (self.trained is None or index in self.trained)

    @property
    def mean_reward(self) -> float:
        """The mean reward of its graded base rollouts; 0 without any."""
        return graded_mean(self.rewards, self.graded)

    @property
    def success_rate(self) -> float:
        """The share of graded base rollouts that are right; 0 without any."""
        return graded_mean(self.right, self.graded)


@dataclass(frozen=True, kw_only=True)
class Anchored:
    """A base rollout with its anchors and the states that they open.

    ``states[i]`` is the index j of S_j; ``forks[i]`` is the number of response tokens that S_j holds. S_0 is among them
    only if it is sampled afresh.
    """

    group: PromptGroup
    base: int
    anchors: list[int]
    states: list[int]
    forks: list[int]
    parent: str = ""  # id of the base's record if it is a kept base

    @property
    def rollout(self) -> Rollout:
        """The base rollout."""
        return self.group.rollouts[self.base]

    @property
    def base_number(self) -> int:
        """Index of the base among the rollouts sampled with it; this index names its noise and its records."""
        return int(self.parent.rsplit("/", 1)[1]) if self.parent else self.base


def anchored_at(group: PromptGroup, base: int, anchors: list[int], rules: AnchorRules, *, fresh: bool) -> Anchored:
    """A base rollout with the states that ``anchors`` open; with ``fresh`` S_0 is one of them."""
    states, forks = list(range(1, len(anchors) + 1)), [rules.fork(anchor) for anchor in anchors]
    if fresh:
        states, forks = [0, *states], [0, *forks]
    return Anchored(group=group, base=base, anchors=anchors, states=states, forks=forks)


@dataclass(frozen=True, kw_only=True)
class Explored(Anchored):
    """A base rollout with the graded rollouts of its states; lists have the order of ``states``."""

    rollouts: list[list[Rollout]]  # of each state, M of them
    rewards: list[np.ndarray]  # of each state [M]
    outcomes: list[list[Outcome]]  # how each reward came about

    @property
    def graded_states(self) -> list[bool]:
        """Of each state whether a rollout of it is graded; without one it has no value and ends no block."""
        return [bool(are_graded(outcomes).any()) for outcomes in self.outcomes]


@dataclass(frozen=True, kw_only=True)
class Credited(Explored):
    """An explored base rollout with the credit that its rollouts earned; lists have the order of ``states``."""

    advantages: list[np.ndarray]  # of each state [M]
    values: np.ndarray  # V(S_j) of each state
    alphas: np.ndarray  # α_j of each state
    initial_value: float  # V(S_0)
    trained: list[bool]  # false: no loss, because the state has no signal or states do not train
    block_credit: list[float]  # of the base's own blocks


def are_graded(outcomes: Sequence[Outcome]) -> np.ndarray:
    """bool ``[outcomes]``, where the response has a reward."""
    return np.array([outcome not in UNGRADED for outcome in outcomes], bool)


def graded_mean(values: np.ndarray, graded: np.ndarray) -> float:
    """The mean of the values that are graded; 0 without any."""
    return float(values[graded].mean()) if graded.any() else 0.0


def graded_rewards(explored: Explored) -> list[np.ndarray]:
    """Of each state the rewards of its graded rollouts."""
    return [earned[are_graded(row)] for earned, row in zip(explored.rewards, explored.outcomes, strict=True)]


def has_signal(rewards: np.ndarray) -> bool:
    """Return whether a group of graded rollouts has an advantage to learn from."""
    return len(rewards) > 0 and not is_degenerate(rewards)


def mean_reward(groups: Sequence[PromptGroup]) -> float | None:
    """The mean over prompts of the mean reward of base rollouts; None if none is graded."""
    means = [group.mean_reward for group in groups if group.graded.any()]
    return float(np.mean(means)) if means else None


def are_right(outcomes: Sequence[Outcome]) -> np.ndarray:
    """bool ``[outcomes]``, where the verifier accepted the response."""
    return np.array([outcome == "right" for outcome in outcomes], bool)


def by_state(values: Sequence[Any], count: int) -> list[Any]:
    """Cut the ``values`` of all states' rollouts, one state after the other, into ``count`` values per state."""
    return [values[start : start + count] for start in range(0, len(values), count)]
