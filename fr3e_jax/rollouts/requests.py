"""Requests to the decoder (trunks with branches to sample) and its answers (rollouts)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import jax
import numpy as np

from fr3e_jax.policy.rows import Trunks
from fr3e_jax.problem import Problem
from fr3e_jax.programs.decoder_state import LaneSettings
from fr3e_jax.rollouts.episode import EpisodeRecord

STREAM_NAMES = 6  # integers that name a noise stream: purpose, step, prompt, base, state, branch


class NonFiniteLogits(RuntimeError):
    """The network gave NaN, +inf, or no finite logit where a token was to be drawn."""


@dataclass(frozen=True)
class Sampling:
    """The filters of sampling; ``temperature = 0`` is greedy, ``top_p = 1`` and ``top_k = 0`` filter nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Branch:
    """A continuation to sample: it leaves its trunk after ``fork`` tokens and has at most ``max_tokens`` tokens.

    Tools and stop texts need ``prefix``, the part of the response before the branch: a call or a stop text may begin in
    it, and its calls count towards the cap on calls. It is None if the branch starts the response.

    A branch reads its ``given`` tokens before it samples. They count towards ``max_tokens`` and are marked in
    `Rollout.tool_written`; a given stop token ends nothing.
    """

    fork: int
    stream: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    prefix: Rollout | None = None
    given: tuple[int, ...] = ()


@dataclass
class CachedTrunk:
    """A trunk whose keys and values are on the device already: one row of a batch of trunks.

    Sampling consumes this object: its cache moves into a slot, and ``batch`` becomes None, so that no cache is held
    twice while branches decode. Pass `dataclasses.replace(trunk)` to keep it.
    """

    token_ids: np.ndarray
    batch: Trunks | None
    row: int
    routes: np.ndarray | None = None  # int [S, Q], the experts of each token; None: not recorded


@dataclass(frozen=True)
class TrunkRequest:
    """A trunk, as token ids (to prefill) or cached, and the branches to sample from it.

    ``problem``: which an environment poses; None without one.
    """

    trunk: np.ndarray | CachedTrunk
    branches: Sequence[Branch]
    problem: Problem | None = None

    @property
    def token_ids(self) -> np.ndarray:
        return self.trunk.token_ids if isinstance(self.trunk, CachedTrunk) else self.trunk


@dataclass
class Rollout:
    """New tokens of one branch, with the stop token, and the sampler's figures for each; arrays ``[T]``."""

    token_ids: np.ndarray
    logprobs: np.ndarray  # under the distribution sampled from
    entropies: np.ndarray  # nats, full vocabulary, temperature 1
    magnitudes: np.ndarray  # ||e(o) - pi|| ||h||
    finished: bool  # ended with a stop token or a stop text
    _: KW_ONLY
    tool_written: np.ndarray | None = None  # bool, tokens that a tool wrote and the policy read; None: no token
    routes: np.ndarray | None = None  # int [T, Q], the experts that each token passed; None: not recorded
    trunk_routes: np.ndarray | None = None  # int [S, Q], those of its trunk; all branches of a trunk share the array
    episode: EpisodeRecord | None = None  # in an environment

    @property
    def sampled(self) -> np.ndarray:
        """bool ``[T]``, the tokens that the policy chose."""
        return np.ones(len(self.token_ids), bool) if self.tool_written is None else ~self.tool_written

    @property
    def loss_mask(self) -> np.ndarray | None:
        """`sampled`; None if that is every token."""
        return None if self.tool_written is None else ~self.tool_written

    def routes_from(self, fork: int) -> np.ndarray | None:
        """Recorded routes of the trunk's first ``fork`` tokens and of its own, int ``[fork + T, Q]``; None: unknown."""
        if self.routes is None or self.trunk_routes is None:
            return None
        return np.concatenate([self.trunk_routes[:fork], self.routes])

    def head(self, tokens: int) -> Rollout:
        """The rollout's first ``tokens`` tokens; none leave no episode: from the prompt begins a new one."""
        columns = (self.token_ids, self.logprobs, self.entropies, self.magnitudes)
        written = None if self.tool_written is None else self.tool_written[:tokens]
        is_all = tokens >= len(self.token_ids)
        routes = None if self.routes is None else self.routes[:tokens]
        episode = self.episode if is_all or self.episode is None else self.episode.head(tokens) if tokens else None
        ended = self.finished and is_all
        return Rollout(
            *(column[:tokens] for column in columns),
            finished=ended,
            tool_written=written,
            routes=routes,
            trunk_routes=self.trunk_routes,
            episode=episode,
        )

    def then(self, other: Rollout) -> Rollout:
        """This rollout continued by ``other``."""

        def both(name):
            return np.concatenate([getattr(self, name), getattr(other, name)])

        names = ("token_ids", "logprobs", "entropies", "magnitudes")
        written = None if self.tool_written is None and other.tool_written is None else ~both("sampled")
        routes = other.routes
        if len(self.token_ids) and routes is not None:
            routes = None if self.routes is None else both("routes")
        before = other.trunk_routes if self.trunk_routes is None else self.trunk_routes
        episode = other.episode
        if self.episode is not None and episode is not None:
            episode = self.episode.then(len(self.token_ids), episode)
        return Rollout(
            *map(both, names),
            finished=other.finished,
            tool_written=written,
            routes=routes,
            trunk_routes=before,
            episode=episode,
        )


@dataclass
class DecodeCounts:
    """The decoder's counts of tokens, positions, steps and copies."""

    sampled_tokens: int = 0
    tool_tokens: int = 0  # written by tools; each passes through the network in a decode step
    prefill_positions: int = 0  # computed to fill trunk caches
    reused_prefix_positions: int = 0  # prefix positions that branches read from a cache
    lane_steps: int = 0  # lanes x decode steps, idle lanes included
    trunk_insertions: int = 0  # copies of a trunk's cache into a slot
    chunks: int = 0  # chunks of decode steps, each followed by the host's work


Key = tuple[int, int]  # number of a request, number of a branch in it


class Calls(Protocol):
    """Answers the tool calls of one `RolloutEngine.sample`, or the turns in an environment.

    The engine fetches an answer one chunk after it asked for it: the other lanes decode meanwhile. It fetches at once
    if ``at_once`` is set or no other lane decodes. The schedule therefore never depends on the time that a tool takes.
    """

    table: jax.Array  # `programs.decode_steps.Interruptions.table`
    at_once: bool

    def begin(self, key: Key) -> int:
        """The state of ``table`` in which the branch begins."""

    def ask(self, key: Key, token_ids: np.ndarray) -> None:
        """Start the call that the branch has completed with the last of its tokens so far, ``token_ids``."""

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int] | None]:
        """For each branch the tokens of its answer and the state of ``table`` after them; waits for the tools.

        None: the branch ends here.
        """

    def episode(self, key: Key) -> EpisodeRecord | None:
        """The record of a branch that has ended; None without an environment."""

    def close(self) -> None:
        """Close what branches have left open: the decoder's call has ended, was stopped, or failed."""


Ended = Callable[[Sequence[tuple[int, int, Rollout]]], None]
Selector = Callable[[int, list[Rollout], bool], Sequence[int] | None]


def check_requests(requests: Sequence[TrunkRequest]) -> None:
    """Raise ValueError, with the change to make, for a request that the decoder cannot serve."""
    for i, request in enumerate(requests):
        trunk_length = len(request.token_ids)
        if isinstance(request.trunk, CachedTrunk) and request.branches and request.trunk.batch is None:
            raise ValueError(
                f"request {i}: an earlier call consumed its cached trunk and dropped the cache; pass "
                "dataclasses.replace(trunk) to that call to keep the cache, or pass the token ids here to prefill them"
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
    """The decoder's settings for each branch; arrays ``[branches, ...]``."""
    stops = max(1, *(len(b.sampling.stop_ids) for b in branches), 1)

    def padded(rows, width, value, kind):
        return np.array([(*row, *(value,) * (width - len(row))) for row in rows], kind)

    return LaneSettings(
        fork=np.array([b.fork for b in branches], np.int32),
        limit=np.array([b.max_tokens for b in branches], np.int32),
        stream=padded([b.stream for b in branches], STREAM_NAMES, 0, np.uint32),
        temperature=np.array([b.sampling.temperature for b in branches], np.float32),
        top_p=np.array([b.sampling.top_p for b in branches], np.float32),
        top_k=np.array([b.sampling.top_k for b in branches], np.int32),
        stop_ids=padded([b.sampling.stop_ids for b in branches], stops, -1, np.int32),
    )
