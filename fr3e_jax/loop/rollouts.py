"""The rollout scheduler: trunks and branches in, rollouts out, decoder lanes kept busy.

Host side of the decoder (`fr3e_jax.programs.decode`). Work is a list of trunks, each with branches that leave it at any
fork. Trunks take slots and branches take lanes as `fr3e_jax.loop.schedule` says; between two chunks of decode steps the
host harvests the branches that ended and refills their lanes. What a rollout says depends on none of that: its noise
is keyed by its ``stream`` and position alone. The last digits of its log-probs do depend on its neighbours, so the
schedule follows from the requests and the sampled tokens alone, and never from how long a choice (``select``) takes to
be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from fr3e_jax.loop.schedule import IDLE, Placement, Schedule
from fr3e_jax.policy.network import Params
from fr3e_jax.policy.rows import Trunks
from fr3e_jax.programs.decode import DecodeState, Emitted, LaneSettings
from fr3e_jax.programs.decoder import DecoderPrograms, power_of_two, size_bucket

STREAM_NAMES = 6  # integers that name a noise stream: purpose, step, prompt, base, state, branch
_LEAST_CAPACITY = 16
_MOST_DISPLACED = 2  # trunks whose branches are all kept outside of their slot because the choice is not known yet


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; ``temperature = 0`` is greedy, ``top_p = 1`` and ``top_k = 0`` filter nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Branch:
    """A continuation to sample: it leaves its trunk after ``fork`` tokens and has at most ``max_tokens``."""

    fork: int
    stream: tuple[int, ...]
    max_tokens: int
    sampling: Sampling


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


@dataclass
class DecodeCounts:
    """Token positions by what was done with them, and what the decoder did for them."""

    sampled_tokens: int = 0
    prefill_positions: int = 0
    reused_prefix_positions: int = 0  # prefix positions that branches found in the cache
    lane_steps: int = 0  # lanes x decode steps, idle lanes included
    trunk_insertions: int = 0  # copies of a trunk's cache into a slot
    chunks: int = 0  # visits of the host

    @property
    def idle_lane_steps(self) -> int:
        return self.lane_steps - self.sampled_tokens


Ended = Callable[[int, int, Rollout], None]
Selector = Callable[[int, list[Rollout], bool], Sequence[int] | None]


class RolloutEngine:
    """Samples branches from trunks with a fixed number of slots and lanes; reusable, holds no state between runs."""

    def __init__(
        self,
        programs: DecoderPrograms,
        *,
        trunk_slots: int,
        lanes_per_trunk: int,
        chunk: int,
        seed: int,
        pad_id: int = 0,
    ):
        self.programs, self.chunk, self.pad_id = programs, chunk, pad_id
        self.slots, self.lanes = programs.round_up(trunk_slots), lanes_per_trunk
        self.base_key = np.asarray(jax.random.key_data(jax.random.key(seed, impl="threefry2x32")))
        self.counts = DecodeCounts()

    def take_counts(self) -> DecodeCounts:
        """The counts since the last call."""
        counts, self.counts = self.counts, DecodeCounts()
        return counts

    def sample(
        self,
        params: Params,
        requests: Sequence[TrunkRequest],
        select: Selector | None = None,
        ended: Ended | None = None,
    ) -> tuple[list[list[Rollout]], dict[tuple[int, int], CachedTrunk]]:
        """Sample every branch of every request.

        Args:
          params: the weights; cached trunks must come from the same ones.
          requests: trunks and branches.
          select: called as ``select(i, rollouts, wait)`` once all branches of request ``i`` ended; returns the indices
            of the branches to promote to trunks. Without ``wait`` it may return None, not known yet: it is asked again
            after the next chunk, other trunks decode meanwhile. With ``wait`` nothing is left to decode, or there is no
            more room for undecided caches.
          ended: called as ``ended(i, branch, rollout)`` as soon as a branch ended, while others still decode.

        Returns:
          rollouts ``[request][branch]`` and the promoted trunks by ``(request, branch)``.
        """
        _check(requests)
        if not any(request.branches for request in requests):
            return [[] for _ in requests], {}
        return _Run(self, params, requests, select, ended).finish()


def _check(requests: Sequence[TrunkRequest]) -> None:
    for i, request in enumerate(requests):
        if isinstance(request.trunk, CachedTrunk) and request.branches and request.trunk.batch is None:
            raise ValueError(
                f"request {i}: its cached trunk was handed over in an earlier call, which dropped the cache; "
                "hand over dataclasses.replace(trunk) there to keep it, or pass the token ids here to prefill them"
            )
        for branch in request.branches:
            if not 1 <= branch.fork <= len(request.token_ids):
                raise ValueError(
                    f"request {i}: fork {branch.fork} is outside its trunk of {len(request.token_ids)} tokens; "
                    "a branch needs at least one token before it and cannot leave after the trunk's end"
                )
            if branch.max_tokens < 1:
                raise ValueError(f"request {i}: max_tokens is {branch.max_tokens}; a branch has at least one token")
            if len(branch.stream) > STREAM_NAMES:
                raise ValueError(f"request {i}: stream {branch.stream} has more than {STREAM_NAMES} names")


class _Run:
    """One call of `RolloutEngine.sample`; branches go by their numbers in the `Schedule`."""

    def __init__(self, engine: RolloutEngine, params: Params, requests, select: Selector | None, ended: Ended | None):
        self.engine, self.programs, self.params = engine, engine.programs, params
        self.requests, self.select, self.ended = requests, select, ended
        self.branches = [branch for request in requests for branch in request.branches]
        self.settings = _lane_settings(self.branches)
        self.filtered = bool((self.settings.top_p < 1).any() or (self.settings.top_k > 0).any())
        self.trunk_capacity = size_bucket(max(len(r.token_ids) for r in requests), _LEAST_CAPACITY)
        self.schedule = Schedule([[b.max_tokens for b in r.branches] for r in requests], engine.slots, engine.lanes)
        self.cached = {i: r.trunk for i, r in enumerate(requests) if isinstance(r.trunk, CachedTrunk)}
        shape = (engine.slots, engine.lanes)
        self.generated = np.zeros(shape, np.int64)
        self.drawn = [np.zeros((*shape, 0), kind) for kind in (np.int32, np.float32, np.float32, np.float32)]
        self.held = np.full(shape, IDLE, np.int64)  # ended branches that may be chosen, where a lane has their cache
        self.results: list[list[Rollout | None]] = [[None] * len(r.branches) for r in requests]
        self.promoted: dict[tuple[int, int], CachedTrunk] = {}
        self.undecided: list[int] = []  # requests whose branches all ended, until select has decided
        self.displaced: set[int] = set()  # those of them of which a slot went to another trunk
        self.state: DecodeState | None = None

    def finish(self):
        while self._assign():
            self._make_room()
            self.state, emitted = self.programs.decode_chunk(
                self.params,
                self.state,
                steps=self.engine.chunk,
                patience=self.schedule.patience(),
                filtered=self.filtered,
            )
            self._harvest(emitted)
            for request in list(self.undecided):
                self._decide(request, wait=False)
        for request in list(self.undecided):
            self._decide(request, wait=True)
        return self.results, self.promoted

    def _assign(self) -> bool:
        """Bring trunks into free slots and branches into idle lanes; whether any lane is to decode."""
        placed, new = self.schedule.assign()
        for one in placed:
            self._vacate(one.slot)
        self._displace((self.held != IDLE) & new)
        self._insert(placed)
        if new.any():
            self._start(new)
        return bool(self.schedule.active.any())

    # -- trunks ------------------------------------------------------------------------------------------------------

    def _insert(self, placed: list[Placement]) -> None:
        """Copy trunks into their slots: from where they were computed, or from a slot that has them already."""
        first = [one for one in placed if one.source is None]
        if any(one.request not in self.cached for one in first):
            self._prefill([*(one.request for one in first), *self.schedule.waiting])
        by_batch: dict[int, list[tuple[CachedTrunk, int]]] = {}
        for one in first:
            trunk = self.cached.pop(one.request)
            by_batch.setdefault(id(trunk.batch), []).append((trunk, one.slot))
        for group in by_batch.values():
            batch = group[0][0].batch
            if self.state is None:
                self.state = self._empty_state(batch)
            rows, slots = [trunk.row for trunk, _ in group], [slot for _, slot in group]
            self.state = self.programs.insert_trunks(self.state, batch, rows, slots)
            for trunk, _ in group:
                trunk.batch = None
        for one in placed:
            if one.source is not None:
                self.state = self.programs.copy_trunk(self.state, one.source, one.slot)
        self.engine.counts.trunk_insertions += len(placed)

    def _vacate(self, slot: int) -> None:
        """Before a trunk takes a slot: keep elsewhere what may yet be chosen of the request that had it."""
        here = np.zeros(self.held.shape, bool)
        here[slot] = self.held[slot] != IDLE
        if not here.any():
            return
        request = int(self.schedule.owner[self.held[here][0]])
        if request in self.undecided and request not in self.displaced:
            if len(self.displaced) == _MOST_DISPLACED:
                self._decide(request, wait=True)
                return
            self.displaced.add(request)
        self._displace(here)

    def _prefill(self, upcoming: Sequence[int]) -> None:
        """Prefill the next trunks, as many as there are slots, in one program of one shape."""
        batch = [i for i in upcoming if i not in self.cached][: self.engine.slots]
        ids = np.full((self.engine.slots, self.trunk_capacity), self.engine.pad_id, np.int32)
        for row, i in enumerate(batch):
            ids[row, : len(self.requests[i].token_ids)] = self.requests[i].token_ids
            self.engine.counts.prefill_positions += len(self.requests[i].token_ids)
        trunks = self.programs.prefill(self.params, ids)
        for row, i in enumerate(batch):
            self.cached[i] = CachedTrunk(self.requests[i].token_ids, trunks, row)

    def _empty_state(self, like: Trunks) -> DecodeState:
        return self.programs.empty_state(
            like,
            slots=self.engine.slots,
            lanes=self.engine.lanes,
            trunk_capacity=self.trunk_capacity,
            capacity=power_of_two(self._room_needed(), _LEAST_CAPACITY),
            names=STREAM_NAMES,
            stops=self.settings.stop_ids.shape[1],
            promotable=self.select is not None,
        )

    # -- lanes -------------------------------------------------------------------------------------------------------

    def _start(self, new: np.ndarray) -> None:
        """Start in the lanes ``new`` the branches that the schedule has put there."""
        settings = LaneSettings(*(column[self.schedule.branch] for column in self.settings))  # idle lanes: not read
        self.state = self.programs.fill_lanes(self.state, self.engine.base_key, new, settings)
        self.generated[new] = 0
        # The trunk's own last position and all before it would be prefilled once per branch without the cache.
        self.engine.counts.reused_prefix_positions += int(settings.fork[new].sum())

    def _room_needed(self) -> int:
        """Ring columns that the next chunk can fill, at most."""
        active = self.schedule.active
        most = np.minimum(self.generated + self.engine.chunk, self.schedule.limits[self.schedule.branch])
        return int(most[active].max())

    def _make_room(self) -> None:
        """Grow the rings when the next chunk could fill them; cost follows the filled length, not the cap."""
        needed = self._room_needed()
        if needed > self.state.capacity:
            self.state = self.programs.resize(self.state, capacity=power_of_two(needed, _LEAST_CAPACITY))
        if needed > self.drawn[0].shape[2]:
            more = ((0, 0), (0, 0), (0, power_of_two(needed) - self.drawn[0].shape[2]))
            self.drawn = [np.pad(column, more) for column in self.drawn]

    def _harvest(self, emitted: Emitted) -> None:
        """Take over what a chunk drew; a lane emits in the first steps of a chunk and then not at all."""
        step, slot, lane = np.nonzero(emitted.emitted)
        position = self.generated[slot, lane] + step
        for column, fresh in zip(self.drawn, emitted[1:5], strict=True):
            column[slot, lane, position] = fresh[step, slot, lane]
        self.generated += emitted.emitted.sum(axis=0)
        counts = self.engine.counts
        counts.chunks += 1
        counts.sampled_tokens += len(step)
        counts.lane_steps += (int(step.max()) + 1) * self.held.size
        stopped = (emitted.stopped & emitted.emitted).any(axis=0)
        at_limit = self.generated >= self.schedule.limits[self.schedule.branch]
        self._end(self.schedule.active & (stopped | at_limit), stopped)

    def _end(self, over: np.ndarray, stopped: np.ndarray) -> None:
        for slot, lane in np.argwhere(over):
            request, branch = self.schedule.key(self.schedule.branch[slot, lane])
            arrays = (column[slot, lane, : self.generated[slot, lane]].copy() for column in self.drawn)
            rollout = self.results[request][branch] = Rollout(*arrays, finished=bool(stopped[slot, lane]))
            if self.ended is not None:
                self.ended(request, branch, rollout)
        if self.select is not None:
            self.held[over] = self.schedule.branch[over]
        self.undecided += self.schedule.end(over)

    # -- choices -----------------------------------------------------------------------------------------------------

    def _decide(self, request: int, wait: bool) -> None:
        """Let the caller choose what becomes a trunk of a request whose branches all ended."""
        chosen = self.select(request, self.results[request], wait) if self.select is not None else ()
        if chosen is not None:
            self.undecided.remove(request)
            self.displaced.discard(request)
            self._close(request, [(request, int(branch)) for branch in chosen])
        elif wait:
            raise TypeError(f"select returned None for request {request} although it was told to wait")

    def _close(self, request: int, chosen: list[tuple[int, int]]) -> None:
        numbers = [self.schedule.first[request] + branch for _, branch in chosen]
        self._promote(np.isin(self.held, numbers))
        for key in [key for key in self.promoted if key[0] == request and key not in chosen]:
            del self.promoted[key]
        self.held[(self.held != IDLE) & (self.schedule.owner[self.held] == request)] = IDLE

    def _displace(self, lanes: np.ndarray) -> None:
        """Keep elsewhere, as trunks, the ended branches whose caches are in ``lanes`` (bool ``[slots, lanes]``)."""
        self._promote(lanes)
        self.held[lanes] = IDLE

    def _promote(self, lanes: np.ndarray) -> None:
        if not lanes.any():
            return
        keys = [self.schedule.key(number) for number in self.held[lanes]]
        ids = [self._flattened(*key) for key in keys]
        capacity = size_bucket(max(len(x) for x in ids), _LEAST_CAPACITY)
        slots, lanes_in_slot = (places.tolist() for places in np.nonzero(lanes))
        batch = self.programs.promote(self.state, slots, lanes_in_slot, capacity=capacity)
        for row, key in enumerate(keys):
            self.promoted[key] = CachedTrunk(ids[row], batch, row)

    def _flattened(self, request: int, branch: int) -> np.ndarray:
        prefix = self.requests[request].token_ids[: self.requests[request].branches[branch].fork]
        return np.concatenate([prefix, self.results[request][branch].token_ids]).astype(np.int32)


def _lane_settings(branches: Sequence[Branch]) -> LaneSettings:
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
