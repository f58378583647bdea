"""What the stages of a step hand to one another: prompt groups, expansions, and the trunks that train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fr3e_jax.data.problem import Problem
from fr3e_jax.rewards.verdict import Outcome
from fr3e_jax.rewards.verifier import SUCCESS
from fr3e_jax.rollouts.requests import CachedTrunk, Rollout


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
    was sampled afresh. Lists and arrays follow ``states``; state i has ``counts[i]`` rollouts: M, unless
    ``explore.allocation`` says otherwise.
    """

    group: PromptGroup
    base: int
    anchors: list[int]
    states: list[int]
    forks: list[int]
    counts: list[int] = field(default_factory=list)
    rollouts: list[list[Rollout]] = field(default_factory=list)
    rewards: list[np.ndarray] = field(default_factory=list)  # of each state [M]
    outcomes: list[list[Outcome]] = field(default_factory=list)
    advantages: list[np.ndarray] = field(default_factory=list)  # of each state [M]
    values: np.ndarray = field(default_factory=lambda: np.zeros(0))
    alphas: np.ndarray = field(default_factory=lambda: np.zeros(0))
    initial_value: float = 0.0
    trained: list[bool] = field(default_factory=list)  # false: no loss, as all rewards are equal or states do not train
    block_credit: list[float] = field(default_factory=list)  # of the base's own blocks
    parent: str = ""  # record of the base where an earlier step sampled it (archive)

    def by_state(self, values: Sequence[Any]) -> list[Any]:
        """What belongs to the rollouts of all states, one behind the other, cut into states."""
        ends = np.cumsum(self.counts)
        return [values[end - count : end] for count, end in zip(self.counts, ends, strict=True)]

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
    reward: float = 0.0  # of a base rollout as the estimators of advantages read it
    finished: bool = True  # ended by itself, not at the cap on its length
    group: int = 0  # branches of a trunk with the same number share a baseline
    loss_mask: np.ndarray | None = None  # bool, which tokens train (not what a tool wrote); None: all

    @property
    def trains(self) -> np.ndarray:
        """bool ``[T]``, the tokens that train."""
        return np.ones(len(self.token_ids), bool) if self.loss_mask is None else self.loss_mask

    def to_json(self) -> dict[str, Any]:
        return {
            "fork": self.fork,
            "token_ids": self.token_ids.tolist(),
            "advantages": self.advantages.tolist(),
            "sampler_logprobs": self.sampler_logprobs.tolist(),
            "reward": float(self.reward),
            "finished": bool(self.finished),
            "group": int(self.group),
            "loss_mask": None if self.loss_mask is None else self.loss_mask.tolist(),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingBranch:
        mask = content["loss_mask"]
        return cls(
            fork=content["fork"],
            token_ids=np.asarray(content["token_ids"], np.int32),
            advantages=np.asarray(content["advantages"], np.float32),
            sampler_logprobs=np.asarray(content["sampler_logprobs"], np.float32),
            reward=content["reward"],
            finished=content["finished"],
            group=content["group"],
            loss_mask=None if mask is None else np.asarray(mask, bool),
        )


@dataclass
class TrainingTrunk:
    """A trunk and the branches that train on it; ``step`` sampled them."""

    token_ids: np.ndarray
    branches: list[TrainingBranch]
    step: int
    prompt_tokens: int = 0  # of the trunk; the response begins behind them

    def to_json(self) -> dict[str, Any]:
        """JSON that gives back the same arrays bit for bit (a float32 is exact as a Python float)."""
        return {
            "token_ids": self.token_ids.tolist(),
            "step": self.step,
            "prompt_tokens": self.prompt_tokens,
            "branches": [branch.to_json() for branch in self.branches],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingTrunk:
        branches = [TrainingBranch.from_json(branch) for branch in content["branches"]]
        return cls(np.asarray(content["token_ids"], np.int32), branches, content["step"], content["prompt_tokens"])


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
