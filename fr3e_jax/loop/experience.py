"""What the stages of a step hand to one another: prompt groups, expansions, and the trunks that train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fr3e_jax.data.task import Problem
from fr3e_jax.loop.requests import CachedTrunk, Rollout
from fr3e_jax.rewards.verdict import Outcome
from fr3e_jax.rewards.verifier import SUCCESS


@dataclass
class PromptGroup:
    """A prompt with its base rollouts, graded (First Return)."""

    position: int  # in the prompt stream; names the sampling noise
    problem: Problem
    prompt_ids: np.ndarray
    rollouts: list[Rollout]
    rewards: np.ndarray  # [N]
    kept: bool = True
    outcomes: list[Outcome] = field(default_factory=list)  # [N], how each reward came about
    chosen: list[int] = field(default_factory=list)  # base rollouts to expand
    trunks: dict[int, CachedTrunk | np.ndarray] = field(default_factory=dict)  # of the chosen ones; ids: not cached
    advantages: np.ndarray | None = None  # [N], where the base rollouts train

    @property
    def success_rate(self) -> float:
        return float(np.mean(self.rewards >= SUCCESS))


@dataclass
class Expansion:
    """One base rollout with its anchors and what was rolled out from its states.

    ``states[i]`` is the index j of S_j; ``forks[i]`` how many response tokens S_j holds. S_0 is among them only when it
    was sampled afresh. Arrays follow ``states``: rewards ``[J, M]`` and so on.
    """

    group: PromptGroup
    base: int
    anchors: list[int]
    states: list[int]
    forks: list[int]
    rollouts: list[list[Rollout]] = field(default_factory=list)
    rewards: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    outcomes: list[list[Outcome]] = field(default_factory=list)  # [J, M]
    advantages: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    values: np.ndarray = field(default_factory=lambda: np.zeros(0))
    alphas: np.ndarray = field(default_factory=lambda: np.zeros(0))
    initial_value: float = 0.0
    trained: list[bool] = field(default_factory=list)  # false: the group's rewards are all equal, no loss
    block_credit: list[float] = field(default_factory=list)  # of the base's own blocks
    parent: str = ""  # record of the base where an earlier step sampled it (archive)

    @property
    def base_number(self) -> int:
        """Index of the base among the base rollouts that it was sampled with: names its noise and its records."""
        return int(self.parent.rsplit("/", 1)[1]) if self.parent else self.base


@dataclass
class TrainingBranch:
    """A sequence that trains: new tokens after ``fork`` tokens of its trunk; arrays ``[T]``."""

    fork: int
    token_ids: np.ndarray
    advantages: np.ndarray
    sampler_logprobs: np.ndarray


@dataclass
class TrainingTrunk:
    """A trunk and the branches that train on it; ``step`` sampled them."""

    token_ids: np.ndarray
    branches: list[TrainingBranch]
    step: int

    def to_json(self) -> dict[str, Any]:
        """JSON that gives back the same arrays bit for bit (a float32 is exact as a Python float)."""
        return {
            "token_ids": self.token_ids.tolist(),
            "step": self.step,
            "branches": [
                {
                    "fork": branch.fork,
                    "token_ids": branch.token_ids.tolist(),
                    "advantages": branch.advantages.tolist(),
                    "sampler_logprobs": branch.sampler_logprobs.tolist(),
                }
                for branch in self.branches
            ],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingTrunk:
        branches = [
            TrainingBranch(
                fork=branch["fork"],
                token_ids=np.asarray(branch["token_ids"], np.int32),
                advantages=np.asarray(branch["advantages"], np.float32),
                sampler_logprobs=np.asarray(branch["sampler_logprobs"], np.float32),
            )
            for branch in content["branches"]
        ]
        return cls(np.asarray(content["token_ids"], np.int32), branches, content["step"])


def count_rollouts(trunks: list[TrainingTrunk]) -> int:
    return sum(len(trunk.branches) for trunk in trunks)


def split_full_batch(trunks: list[TrainingTrunk], rollouts: int) -> tuple[list[TrainingTrunk], list[TrainingTrunk]]:
    """The first trunks that hold at least ``rollouts`` rollouts together, and the rest. Groups are never cut."""
    held = 0
    for index, trunk in enumerate(trunks):
        held += len(trunk.branches)
        if held >= rollouts:
            return trunks[: index + 1], trunks[index + 1 :]
    return trunks, []
