"""Experience: the trunks and branches that train."""

from __future__ import annotations

import base64
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.rollouts.sampled_tokens import LaneArray


def _content(value: Any) -> Any:
    """JSON content of a field; an array is its type, its shape and its bytes: it may have millions of numbers."""
    if not isinstance(value, np.ndarray | LaneArray):
        return value.item() if isinstance(value, np.generic) else value
    little_endian = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return [value.dtype.name, list(value.shape), base64.b64encode(little_endian).decode("ascii")]


def _value(content: Any) -> Any:
    """The field of which `_content` made JSON."""
    if not isinstance(content, list):
        return content
    name, shape, values = content
    kind = np.dtype(name)
    return np.frombuffer(base64.b64decode(values), kind.newbyteorder("<")).astype(kind).reshape(shape)


def _copied_arrays(carrier: TrainingBranch | TrainingTrunk) -> dict[str, np.ndarray]:
    values = {field.name: getattr(carrier, field.name) for field in fields(carrier)}
    return {name: value.copy() for name, value in values.items() if isinstance(value, np.ndarray | LaneArray)}


@dataclass
class TrainingBranch:
    """A sequence that trains: new tokens after ``fork`` tokens of its trunk; arrays ``[T]``."""

    fork: int
    token_ids: np.ndarray
    advantages: np.ndarray
    sampler_logprobs: np.ndarray
    reward: float = 0.0  # of a base rollout: as the advantage estimators read it
    finished: bool = True  # ended by a stop token, not by the cap on its length
    group: int = 0  # branches of a trunk with the same number share a baseline
    right: bool = False  # the verifier accepted the response that ends with this branch
    loss_mask: np.ndarray | None = None  # bool, the tokens that train (a tool's do not); None: all
    routes: np.ndarray | None = None  # int [T, Q], the experts that the tokens passed in the sampler; None: unknown
    on_trunk: bool = False  # its tokens are those of the trunk after ``fork``
    step: int | None = None  # that sampled it; None: the trunk's

    @cached_property
    def trains(self) -> np.ndarray:
        """bool ``[T]``, the tokens that train."""
        return np.ones(len(self.token_ids), bool) if self.loss_mask is None else self.loss_mask

    @property
    def loss_tokens(self) -> int:
        """The number of tokens that train."""
        return len(self.token_ids) if self.loss_mask is None else int(np.count_nonzero(self.loss_mask))

    def trained(self, values: np.ndarray) -> np.ndarray:
        """Those of ``values``, ``[T]``, that belong to tokens that train; not a copy if all do."""
        return values if self.loss_mask is None else values[self.loss_mask]

    def copy(self) -> TrainingBranch:
        """The same branch with arrays of its own: those of a rollout are views of all that its step sampled."""
        return replace(self, **_copied_arrays(self))

    def to_json(self) -> dict[str, Any]:
        """JSON content that `from_json` restores bit for bit."""
        return {field.name: _content(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingBranch:
        """The branch that `to_json` described."""
        return cls(**{name: _value(value) for name, value in content.items()})


def sampled_branch(rollout: Rollout, fork: int, advantages: float | np.ndarray, **options: Any) -> TrainingBranch:
    """A rollout as a branch that trains with ``advantages``, one or ``[T]``; ``options``: further fields."""
    if not isinstance(advantages, np.ndarray):  # a view of one number; `np.broadcast_to` takes five times as long
        advantages = np.ndarray(len(rollout.token_ids), np.float32, np.float32(advantages), strides=(0,))
    return TrainingBranch(
        fork,
        rollout.token_ids,
        np.asarray(advantages, np.float32),
        rollout.logprobs,
        finished=rollout.finished,
        loss_mask=rollout.loss_mask,
        routes=rollout.routes,
        **options,
    )


@dataclass
class TrainingTrunk:
    """A trunk and the branches that train on it; ``step`` sampled those of them that have no step of their own."""

    token_ids: np.ndarray
    branches: list[TrainingBranch]
    step: int
    prompt_tokens: int = 0  # of the trunk; the response begins after them
    routes: np.ndarray | None = None  # int [S, Q], as those of a branch

    def sampled(self, branch: TrainingBranch) -> int:
        """The step that sampled a branch of it."""
        return self.step if branch.step is None else branch.step

    def relative_positions(self, branch: TrainingBranch) -> np.ndarray:
        """Places of a branch's tokens in the whole response, which begins after the prompt: float32 ``[T]`` below 1."""
        before = branch.fork - self.prompt_tokens
        places = before + np.arange(len(branch.token_ids), dtype=np.float32)
        return places / np.float32(before + len(branch.token_ids))

    def copy(self) -> TrainingTrunk:
        """The same trunk with arrays of its own, as `TrainingBranch.copy`."""
        return replace(self, branches=[branch.copy() for branch in self.branches], **_copied_arrays(self))

    def to_json(self) -> dict[str, Any]:
        """JSON content that `from_json` restores bit for bit."""
        content = {field.name: _content(getattr(self, field.name)) for field in fields(self)}
        return content | {"branches": [branch.to_json() for branch in self.branches]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingTrunk:
        """The trunk that `to_json` described."""
        branches = [TrainingBranch.from_json(branch) for branch in content["branches"]]
        return cls(branches=branches, **{name: _value(value) for name, value in content.items() if name != "branches"})


def count_rollouts(trunks: list[TrainingTrunk]) -> int:
    """The number of branches of all trunks."""
    return sum(len(trunk.branches) for trunk in trunks)


def split_full_batch(trunks: list[TrainingTrunk], rollouts: int) -> tuple[list[TrainingTrunk], list[TrainingTrunk]]:
    """The first trunks that together hold at least ``rollouts`` rollouts, and the rest. Trunks are never cut."""
    rollout_count = 0
    for index, trunk in enumerate(trunks):
        rollout_count += len(trunk.branches)
        if rollout_count >= rollouts:
            return trunks[: index + 1], trunks[index + 1 :]
    return trunks, []
