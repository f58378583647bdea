"""The rollout engine: trunks and branches in, rollouts out, decoder lanes kept busy.

This is the host side of the decoder (`fr3e_jax.programs.decode_steps`). Work is a list of trunks; branches leave a
trunk at any fork. `fr3e_jax.rollouts.schedule` gives slots to trunks and lanes to branches. Between two chunks of
decode steps, the host refills the lanes of ended branches. While the next chunk runs, the host cuts the tokens of the
ended branches into rollouts and hands them on.

Slots, lanes and chunks do not change the tokens of a rollout: its noise is keyed by its ``stream`` and the position
alone. But the last digits of its log-probs depend on the neighbouring lanes. The schedule therefore follows from the
requests and the sampled tokens alone, and never from the time that a choice (``select``) takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from fr3e_jax.policy.network import Params
from fr3e_jax.policy.rows import Trunks
from fr3e_jax.programs.decode_steps import Emitted, Interruptions
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import DecodeState, LaneSettings
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.programs.size_buckets import power_of_two
from fr3e_jax.rollouts.promotion import Promotion
from fr3e_jax.rollouts.requests import (
    STREAM_NAMES,
    CachedTrunk,
    Calls,
    DecodeCounts,
    Ended,
    Key,
    NonFiniteLogits,
    Rollout,
    Selector,
    TrunkRequest,
    check_requests,
    lane_settings,
)
from fr3e_jax.rollouts.sampled_tokens import SampledTokens
from fr3e_jax.rollouts.schedule import Schedule, SlotAssignment, filled_lanes
from fr3e_jax.rollouts.stop_texts import NoCalls, StopTexts
from fr3e_jax.rollouts.tool_tokens import Pauses


class RolloutEngine:
    """Samples branches from trunks in caches of the declared ``shapes``; keeps only `counts` between calls."""

    def __init__(self, programs: DecoderPrograms, shapes: Shapes, *, seed: int, pad_id: int = 0):
        self.programs, self.shapes, self.pad_id = programs, shapes, pad_id
        self.slots = programs.round_up(shapes.slots)
        self.base_key = np.asarray(jax.random.key_data(jax.random.key(seed, impl="threefry2x32")))
        self.counts = DecodeCounts()
        self.stop_here: Callable[[], None] = go_on  # called between chunks; raises where the run stops

    def take_counts(self) -> DecodeCounts:
        """The counts since the last call of this method."""
        counts, self.counts = self.counts, DecodeCounts()
        return counts

    def sample(
        self,
        params: Params,
        requests: Sequence[TrunkRequest],
        select: Selector | None = None,
        ended: Ended | None = None,
        calls: Calls | None = None,
    ) -> tuple[list[list[Rollout]], dict[tuple[int, int], CachedTrunk]]:
        """Sample every branch of every request.

        Args:
          params: the weights; cached trunks must come from the same weights.
          requests: trunks and branches.
          select: called as ``select(i, rollouts, wait)`` when all branches of request ``i`` have ended; returns the
            indices of the branches to promote to trunks. Without ``wait`` it may return None for "not known yet": the
            other trunks decode on, and it is called again after the next chunk. ``wait`` is set when nothing is left to
            decode, or when there is no more room for undecided caches.
          ended: called as ``ended([(i, branch, rollout), ...])`` as soon as branches end, while others still decode.
          calls: answers the tool calls of branches; None: there are no tools.

        Returns:
          Rollouts ``[request][branch]``, and the promoted trunks by ``(request, branch)``.

        Raises:
          ValueError: as `check_requests`.
          NonFiniteLogits: the network gave NaN or infinity in place of a distribution.
        """
        check_requests(requests)
        if not any(request.branches for request in requests):
            return [[] for _ in requests], {}
        return _SamplingCall(self, params, requests, select, ended, calls).finish()

    def prefill(self, params: Params, sequences: Sequence[np.ndarray]) -> list[CachedTrunk]:
        """Cached trunks of token sequences, all in one batch: to read their hidden states, and then to branch.

        Each later call that is to keep a cache gets `dataclasses.replace` of its trunk.
        """
        rows = self.programs.round_up(power_of_two(len(sequences)))
        ids = np.full((rows, self.shapes.trunk(max(map(len, sequences)))), self.pad_id, np.int32)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = sequence
            self.counts.prefill_positions += len(sequence)
        batch, routes = self.programs.fetch_routes(self.programs.prefill(params, ids))
        return [_cached(np.asarray(sequence, np.int32), batch, row, routes) for row, sequence in enumerate(sequences)]


class _SamplingCall:
    """One call of `RolloutEngine.sample`; branches have the numbers of the `Schedule`."""

    def __init__(self, engine: RolloutEngine, params: Params, requests, select, ended, calls: Calls | None):
        self.engine, self.programs, self.params = engine, engine.programs, params
        self.requests, self.promotable, self.ended = requests, select is not None, ended
        self.branches = [branch for request in requests for branch in request.branches]
        self.settings = lane_settings(self.branches)
        self.filtered = bool((self.settings.top_p < 1).any() or (self.settings.top_k > 0).any())
        self.trunk_capacity = engine.shapes.trunk(max(len(r.token_ids) for r in requests))
        self.cached = {i: r.trunk for i, r in enumerate(requests) if isinstance(r.trunk, CachedTrunk)}
        self.trunk_routes = {i: trunk.routes for i, trunk in self.cached.items()}
        self.longest = max(branch.max_tokens for branch in self.branches)
        limits = [[branch.max_tokens for branch in request.branches] for request in requests]
        filled = filled_lanes(max(map(len, limits)), alike=all(len(set(row)) < 2 for row in limits))
        slots, lanes = engine.shapes.layout(sum(map(bool, limits)), filled)
        lanes = engine.programs.round_up(slots), lanes
        self.schedule = Schedule(limits, *lanes)
        self.sampled = SampledTokens(*lanes)
        if calls is None and any(branch.given for branch in self.branches):
            calls = NoCalls(StopTexts((), [b""] * params["embedding"].shape[0], engine.programs), requests)

        def given_tokens(key):
            return requests[key[0]].branches[key[1]].given

        self.pauses = None if calls is None else Pauses(calls, *lanes, given_tokens)
        self.results: list[list[Rollout | None]] = [[None] * len(r.branches) for r in requests]
        self.promotion = Promotion(engine.programs, self.schedule, requests, self.results, select, engine.shapes)
        self.state: DecodeState | None = None
        self.ending: _EndedBranches | None = None

    def finish(self):
        while True:
            self.engine.stop_here()
            if not self._assign():
                break
            interruptions = self._resume(aligned=self._make_room())
            self.state, emitted = self.programs.decode_chunk(
                self.params,
                self.state,
                steps=self.engine.shapes.chunk,
                patience=self.schedule.patience(),
                filtered=self.filtered,
                interruptions=interruptions,
            )
            self._hand_on()  # branches that the chunk before has ended, while this chunk runs
            self._take(self.programs.fetch(emitted), interruptions)
        self._hand_on()
        self.promotion.decide(self.state, wait=True)
        return self.results, self.promotion.promoted

    # -- the parts of a chunk's round --------------------------------------------------------------------------------

    def _assign(self) -> bool:
        """Bring trunks into free slots and branches into idle lanes; return whether any lane has a branch."""
        assignments, new = self.schedule.assign()
        if self.promotable and (assignments or new.any()):
            self._hand_on()  # the lanes to fill may hold caches from which the caller still has to choose
        for assignment in assignments:
            self.promotion.vacate(self.state, assignment.slot)
        self.promotion.clear(self.state, new)
        self._insert(assignments)
        if new.any():
            self._start(new)
        return bool(self.schedule.active.any())

    # -- trunks ------------------------------------------------------------------------------------------------------

    def _insert(self, assignments: list[SlotAssignment]) -> None:
        """Copy trunks into their slots, each from the batch that computed it or from a slot that holds it already."""
        first = [assignment for assignment in assignments if assignment.source is None]
        while any(assignment.request not in self.cached for assignment in first):
            self._prefill([*(assignment.request for assignment in first), *self.schedule.waiting])
        for assignment in first:
            trunk = self.cached.pop(assignment.request)
            if self.state is None:
                self.state = self._empty_state(trunk.batch)
            self.state = self.programs.insert_trunk(self.state, trunk.batch, trunk.row, assignment.slot)
            trunk.batch = None
        for assignment in assignments:
            if assignment.source is not None:
                self.state = self.programs.copy_trunk(self.state, assignment.source, assignment.slot)
        self.engine.counts.trunk_insertions += len(assignments)

    def _prefill(self, upcoming: Sequence[int]) -> None:
        """Prefill the next trunks in one program of one shape: as many as the settings have slots."""
        batch = [i for i in upcoming if i not in self.cached][: self.engine.slots]
        ids = np.full((self.engine.slots, self.trunk_capacity), self.engine.pad_id, np.int32)
        for row, i in enumerate(batch):
            ids[row, : len(self.requests[i].token_ids)] = self.requests[i].token_ids
            self.engine.counts.prefill_positions += len(self.requests[i].token_ids)
        trunks, routes = self.programs.fetch_routes(self.programs.prefill(self.params, ids))
        for row, i in enumerate(batch):
            self.cached[i] = _cached(self.requests[i].token_ids, trunks, row, routes)
            self.trunk_routes[i] = self.cached[i].routes

    def _empty_state(self, like: Trunks) -> DecodeState:
        shapes, (slots, lanes) = self.engine.shapes, self.schedule.branch.shape
        return self.programs.empty_state(
            like,
            slots=slots,
            lanes=lanes,
            trunk_capacity=self.trunk_capacity,
            capacity=shapes.ring(self._room_needed(), self.longest),
            names=STREAM_NAMES,
            stops=self.settings.stop_ids.shape[1],
            promotable=self.promotable or (shapes.promotable and self.trunk_capacity == shapes.prompt),
        )

    # -- lanes -------------------------------------------------------------------------------------------------------

    def _start(self, new: np.ndarray) -> None:
        """Start the branches that the schedule has put into the lanes ``new``."""
        # An idle lane gets the settings of the last branch; no program uses them.
        settings = LaneSettings(*(column[self.schedule.branch] for column in self.settings))
        self.state = self.programs.fill_lanes(self.state, self.engine.base_key, new, settings)
        self.sampled.start(new)
        if self.pauses is not None:
            self.pauses.start(new, self._keys(new))
        # Without the cache, each branch would prefill the positions before its fork.
        self.engine.counts.reused_prefix_positions += int(settings.fork[new].sum())

    def _room_needed(self) -> int:
        """Ring columns that the next chunk fills at most."""
        active = self.schedule.active
        most = np.minimum(self.sampled.generated + self.engine.shapes.chunk, self.schedule.limits[self.schedule.branch])
        return int(most[active].max())

    def _resume(self, aligned: bool) -> Interruptions | None:
        """Resume lanes whose tools have answered; ``aligned``: the tokens of all lanes end at one column already."""
        if self.pauses is None:
            return None
        if self.pauses.resume(self.schedule.active, self.sampled.generated) and not aligned:
            self.state = self.programs.resize(self.state, capacity=self.state.capacity)
        return self.pauses.inputs(self.sampled.generated, self.engine.shapes.chunk)

    def _make_room(self) -> bool:
        """Grow the rings if the next chunk could fill them; return whether they were resized.

        The cost of a step then follows the tokens of the longest branch so far.
        """
        needed = self._room_needed()
        if needed <= self.state.capacity:
            return False
        self.state = self.programs.resize(self.state, capacity=self.engine.shapes.ring(needed, self.longest))
        return True

    def _keys(self, lanes: np.ndarray) -> list[Key]:
        return [self.schedule.key(branch) for branch in self.schedule.branch[lanes].tolist()]

    # -- rollouts ----------------------------------------------------------------------------------------------------

    def _take(self, emitted: Emitted, interruptions: Interruptions | None) -> None:
        """Take over as much of a chunk's tokens as the next chunk depends on, and free the lanes that ended."""
        check_finite(emitted)
        tokens, steps = self.sampled.take(emitted, self.schedule.active)
        counts = self.engine.counts
        counts.chunks += 1
        tool_tokens = 0
        if interruptions is not None:
            written = interruptions.tool_written >= 0
            tool_tokens = int(written[np.arange(len(written))[:, None, None] < emitted.counts].sum())
        counts.sampled_tokens += tokens - tool_tokens
        counts.tool_tokens += tool_tokens
        counts.lane_steps += steps * self.schedule.branch.size
        stopped = emitted.stopped.copy()
        at_limit = self.sampled.generated >= self.schedule.limits[self.schedule.branch]
        if interruptions is not None:
            called = self.pauses.take(emitted, interruptions.tool_written)
            stopped &= ~called
            self._pause(self.schedule.active & called & ~at_limit)  # at the cap there is no room for an answer
            stopped |= self.pauses.ended
        over = self.schedule.active & (stopped | at_limit)
        lengths = self.sampled.generated[over]
        self.promotion.end(over)
        keys = self._keys(over)
        notes = None if interruptions is None else self.pauses.notes_of(over, keys, lengths)
        self.ending = _EndedBranches(over, stopped, lengths, keys, notes, self.schedule.end(over))

    def _pause(self, asking: np.ndarray) -> None:
        written = self.sampled.cut(asking, asking, self.sampled.generated[asking])
        self.pauses.pause(asking, self._keys(asking), [rollout.token_ids for rollout in written])

    def _hand_on(self) -> None:
        """Pass the rollouts that the last chunk ended to the results, to the caller, and to the choices."""
        if self.ending is None:
            return
        ending, self.ending = self.ending, None
        rollouts = self.sampled.cut(ending.over, ending.stopped, ending.lengths)
        if ending.notes is not None:
            rollouts = [replace(rollout, **note) for rollout, note in zip(rollouts, ending.notes, strict=True)]
        for (request, branch), rollout in zip(ending.keys, rollouts, strict=True):
            rollout.trunk_routes = self.trunk_routes.get(request)
            self.results[request][branch] = rollout
        if self.ended is not None and rollouts:
            self.ended([(*key, rollout) for key, rollout in zip(ending.keys, rollouts, strict=True)])
        self.promotion.await_decision(ending.requests)
        self.promotion.decide(self.state, wait=False)


def _cached(token_ids: np.ndarray, batch: Trunks, row: int, routes: np.ndarray | None) -> CachedTrunk:
    return CachedTrunk(token_ids, batch, row, None if routes is None else routes[row, : len(token_ids)])


def go_on() -> None:
    """Stop nowhere: `RolloutEngine.stop_here` of an engine that no run has set."""


def check_finite(emitted: Emitted) -> None:
    """Raise `NonFiniteLogits` unless every token of a chunk has an entropy; logits of −inf are allowed."""
    if emitted.ruined.any():
        raise NonFiniteLogits(
            f"the logits of {emitted.ruined.sum()} of {emitted.counts.sum()} tokens are NaN or infinite; "
            "expected finite ones, or -inf for tokens that cannot be drawn"
        )


class _EndedBranches(NamedTuple):
    """Branches that a chunk ended; lists and ``lengths`` are in row-major order of the lanes."""

    over: np.ndarray  # bool [slots, lanes]
    stopped: np.ndarray  # bool [slots, lanes], ended by a stop token
    lengths: np.ndarray  # tokens of each branch
    keys: list[Key]
    notes: list[dict[str, Any]] | None  # further fields of each `Rollout`
    requests: list[int]  # requests without another branch left
