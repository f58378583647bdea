"""What is asked of the decoder and what it answers: trunks with branches to sample, and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from fr3e_jax.policy.rows import Trunks
from fr3e_jax.programs.decoder_state import LaneSettings

STREAM_NAMES = 6  # integers that name a noise stream: purpose, step, prompt, base, state, branch


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; ``temperature = 0`` is greedy, ``top_p = 1`` and ``top_k = 0`` filter nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Branch:
    """A continuation to sample: it leaves its trunk after ``fork`` tokens and has at most ``max_tokens``.

    ``prefix`` is what stands of the response before it, where that is not nothing and tools are on: they read calls
    that begin in it, and count those that it has made.
    """

    fork: int
    stream: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    prefix: Rollout | None = None


@dataclass
class CachedTrunk:
    """A trunk whose keys and values are on the device already: one row of a batch of them.

    Who samples from it hands it over: the decoder copies it into a slot and drops ``batch``, so that a trunk's cache is
    not held twice while its branches decode. To sample from it again, hand over a `dataclasses.replace` of it.
    """

    token_ids: np.ndarray
    batch: Trunks | None
    row: int


@dataclass(frozen=True)
class TrunkRequest:
    """A trunk, as token ids (to prefill) or cached, and the branches to sample from it."""

    trunk: np.ndarray | CachedTrunk
    branches: Sequence[Branch]

    @property
    def token_ids(self) -> np.ndarray:
        return self.trunk.token_ids if isinstance(self.trunk, CachedTrunk) else self.trunk


@dataclass
class Rollout:
    """New tokens of one branch, stop token included, with what the sampler saw at each; arrays ``[T]``."""

    token_ids: np.ndarray
    logprobs: np.ndarray  # under the distribution drawn from
    entropies: np.ndarray  # nats, full vocabulary, temperature 1
    magnitudes: np.ndarray  # ||e(o) - pi|| ||h||
    finished: bool  # ended with a stop token
    given: np.ndarray | None = None  # bool, what a tool wrote and the policy read; None: nothing

    @property
    def drawn(self) -> np.ndarray:
        """bool ``[T]``, the tokens that the policy chose."""
        return np.ones(len(self.token_ids), bool) if self.given is None else ~self.given

    @property
    def loss_mask(self) -> np.ndarray | None:
        """`drawn`; None where that is all."""
        return None if self.given is None else ~self.given

    def head(self, tokens: int) -> Rollout:
        """The first ``tokens`` tokens."""
        columns = (self.token_ids, self.logprobs, self.entropies, self.magnitudes)
        given = None if self.given is None else self.given[:tokens]
        return Rollout(*(column[:tokens] for column in columns), self.finished and tokens >= len(self.token_ids), given)

    def then(self, other: Rollout) -> Rollout:
        """The response that goes on with ``other``."""
        both = lambda name: np.concatenate([getattr(self, name), getattr(other, name)])
        names = ("token_ids", "logprobs", "entropies", "magnitudes")
        given = None if self.given is None and other.given is None else ~both("drawn")
        return Rollout(*map(both, names), other.finished, given)


@dataclass
class DecodeCounts:
    """Token positions by what was done with them, and what the decoder did for them."""

    sampled_tokens: int = 0
    given_tokens: int = 0  # written by a tool, passed through the network one by one
    prefill_positions: int = 0
    reused_prefix_positions: int = 0  # prefix positions that branches found in the cache
    lane_steps: int = 0  # lanes x decode steps, idle lanes included
    trunk_insertions: int = 0  # copies of a trunk's cache into a slot
    chunks: int = 0  # visits of the host

    @property
    def idle_lane_steps(self) -> int:
        return self.lane_steps - self.sampled_tokens - self.given_tokens


Key = tuple[int, int]  # a request and a branch of it


class Calls(Protocol):
    """Who answers the calls of tools in one `RolloutEngine.sample`.

    Answers are fetched one visit of the host after they were asked for, so that others decode meanwhile; at once where
    nothing else decodes or ``at_once``. So no schedule depends on how long a tool takes.
    """

    table: jax.Array  # `programs.decode_steps.Interruptions.table`
    at_once: bool

    def begin(self, key: Key) -> int:
        """The state of the table in which a branch begins."""

    def ask(self, key: Key, token_ids: np.ndarray) -> None:
        """The branch has completed a call with the last of its own tokens so far, ``token_ids``."""

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int]]:
        """To what these branches asked: the tokens to be read, and the state of the table after them; waits for it."""


Ended = Callable[[Sequence[tuple[int, int, Rollout]]], None]
Selector = Callable[[int, list[Rollout], bool], Sequence[int] | None]


def check_requests(requests: Sequence[TrunkRequest]) -> None:
    """Raises ValueError, with what to change, where the decoder cannot do what is asked."""
    for i, request in enumerate(requests):
        trunk_length = len(request.token_ids)
        if isinstance(request.trunk, CachedTrunk) and request.branches and request.trunk.batch is None:
            raise ValueError(
                f"request {i}: its cached trunk was handed over in an earlier call, which dropped the cache; "
                "hand over dataclasses.replace(trunk) there to keep it, or pass the token ids here to prefill them"
            )
        for branch in request.branches:
            if not 1 <= branch.fork <= trunk_length:
                raise ValueError(
                    f"request {i}: fork {branch.fork} is outside its trunk of {trunk_length} tokens; "
                    "a branch needs at least one token before it and cannot leave after the trunk's end"
                )
            if branch.max_tokens < 1:
                raise ValueError(f"request {i}: max_tokens is {branch.max_tokens}; a branch has at least one token")
            if len(branch.stream) > STREAM_NAMES:
                raise ValueError(f"request {i}: stream {branch.stream} has more than {STREAM_NAMES} names")


def lane_settings(branches: Sequence[Branch]) -> LaneSettings:
    """What the decoder is told of each branch; arrays ``[branches, ...]``."""
    stops = max(1, *(len(b.sampling.stop_ids) for b in branches), 1)
    padded = lambda rows, width, value, kind: np.array([(*row, *(value,) * (width - len(row))) for row in rows], kind)
    return LaneSettings(
        fork=np.array([b.fork for b in branches], np.int32),
        limit=np.array([b.max_tokens for b in branches], np.int32),
        stream=padded([b.stream for b in branches], STREAM_NAMES, 0, np.uint32),
        temperature=np.array([b.sampling.temperature for b in branches], np.float32),
        top_p=np.array([b.sampling.top_p for b in branches], np.float32),
        top_k=np.array([b.sampling.top_k for b in branches], np.int32),
        stop_ids=padded([b.sampling.stop_ids for b in branches], stops, -1, np.int32),
    )
