"""Experience: the trunks and branches that train."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


def _packed(array: np.ndarray, kind: type[np.generic]) -> str:
    """The bytes of an array as text. A partial batch may have millions of tokens, too many for lists of numbers."""
    return base64.b64encode(np.ascontiguousarray(array, np.dtype(kind).newbyteorder("<"))).decode("ascii")


def _unpacked(content: str | list, kind: type[np.generic]) -> np.ndarray:
    """The array that `_packed` described; earlier checkpoints hold lists."""
    if isinstance(content, list):
        return np.asarray(content, kind)
    return np.frombuffer(base64.b64decode(content), np.dtype(kind).newbyteorder("<")).astype(kind)


def _packed_routes(routes: np.ndarray | None) -> list | None:
    return None if routes is None else [routes.dtype.name, list(routes.shape), _packed(routes, routes.dtype.type)]


def _unpacked_routes(content: list | None) -> np.ndarray | None:
    if content is None:
        return None
    name, shape, values = content
    return _unpacked(values, np.dtype(name).type).reshape(shape)


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

    def to_json(self) -> dict[str, Any]:
        """JSON content that `from_json` restores bit for bit."""
        return {
            "fork": self.fork,
            "token_ids": _packed(self.token_ids, np.int32),
            "advantages": _packed(self.advantages, np.float32),
            "sampler_logprobs": _packed(self.sampler_logprobs, np.float32),
            "reward": float(self.reward),
            "finished": bool(self.finished),
            "group": int(self.group),
            "right": bool(self.right),
            "loss_mask": None if self.loss_mask is None else _packed(self.loss_mask, np.bool_),
            "routes": _packed_routes(self.routes),
            "on_trunk": self.on_trunk,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingBranch:
        """The branch that `to_json` described."""
        mask = content["loss_mask"]
        return cls(
            fork=content["fork"],
            token_ids=_unpacked(content["token_ids"], np.int32),
            advantages=_unpacked(content["advantages"], np.float32),
            sampler_logprobs=_unpacked(content["sampler_logprobs"], np.float32),
            reward=content["reward"],
            finished=content["finished"],
            group=content["group"],
            right=content["right"],
            loss_mask=None if mask is None else _unpacked(mask, np.bool_),
            routes=_unpacked_routes(content["routes"]),
            on_trunk=content["on_trunk"],
        )


@dataclass
class TrainingTrunk:
    """A trunk and the branches that train on it; ``step`` is the step that sampled them."""

    token_ids: np.ndarray
    branches: list[TrainingBranch]
    step: int
    prompt_tokens: int = 0  # of the trunk; the response begins after them
    routes: np.ndarray | None = None  # int [S, Q], as those of a branch

    def to_json(self) -> dict[str, Any]:
        """JSON content that `from_json` restores bit for bit."""
        return {
            "token_ids": _packed(self.token_ids, np.int32),
            "step": self.step,
            "prompt_tokens": self.prompt_tokens,
            "routes": _packed_routes(self.routes),
            "branches": [branch.to_json() for branch in self.branches],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingTrunk:
        """The trunk that `to_json` described."""
        branches = [TrainingBranch.from_json(branch) for branch in content["branches"]]
        ids, routes = _unpacked(content["token_ids"], np.int32), _unpacked_routes(content["routes"])
        return cls(ids, branches, content["step"], content["prompt_tokens"], routes)


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
