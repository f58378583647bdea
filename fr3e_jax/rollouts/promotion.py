"""Promotion of ended branches to trunks: their caches are kept until the caller has chosen among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import DecodeState
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rollouts.requests import CachedTrunk, Rollout, Selector, TrunkRequest
from fr3e_jax.rollouts.schedule import IDLE, Schedule

MOST_DISPLACED = 2  # undecided requests whose caches are kept outside of their slot


class Promotion:
    """The choice of ended branches to promote in one call of `RolloutEngine.sample`.

    A cache stays in its lane until the lane or its slot is needed; then it is copied out as a trunk. When all branches
    of a request have ended, ``select`` chooses among them, and the caches of the others are dropped.

    Args:
      programs: the decoder's programs, one of which promotes.
      schedule: numbers the branches.
      requests: the requests of the call.
      results: their rollouts, ``[request][branch]``; the caller fills them in.
      select: see `RolloutEngine.sample`; None: no cache is kept.
      shapes: sizes of trunks.
    """

    def __init__(
        self,
        programs: DecoderPrograms,
        schedule: Schedule,
        requests: Sequence[TrunkRequest],
        results: list[list[Rollout | None]],
        select: Selector | None,
        shapes: Shapes,
    ):
        self.promoted: dict[tuple[int, int], CachedTrunk] = {}
        self._programs, self._schedule, self._requests = programs, schedule, requests
        self._results, self._select, self._shapes = results, select, shapes
        self._held = np.full(schedule.branch.shape, IDLE, np.int64)  # ended branches whose cache is in the lane
        self.undecided: list[int] = []  # requests whose branches have all ended, until select has decided
        self._displaced: set[int] = set()  # undecided requests of which a slot went to another trunk

    def end(self, over: np.ndarray) -> None:
        """Keep the caches of the branches in ``over``, bool ``[slots, lanes]``, before the schedule frees the lanes."""
        if self._select is not None:
            self._held[over] = self._schedule.branch[over]

    def await_decision(self, requests: list[int]) -> None:
        """Note that all branches of these requests have ended."""
        self.undecided += requests

    def decide(self, state: DecodeState, wait: bool) -> None:
        """Ask for the open choices; with ``wait``, all of them are made."""
        for request in list(self.undecided):
            self._decide(state, request, wait)

    def vacate(self, state: DecodeState, slot: int) -> None:
        """Empty a slot before a trunk takes it: copy out the caches in it that may yet be chosen."""
        here = np.zeros(self._held.shape, bool)
        here[slot] = self._held[slot] != IDLE
        if not here.any():
            return
        request = int(self._schedule.owner[self._held[here][0]])
        if request in self.undecided and request not in self._displaced:
            if len(self._displaced) == MOST_DISPLACED:
                self._decide(state, request, wait=True)
                return
            self._displaced.add(request)
        self._displace(state, here)

    def clear(self, state: DecodeState, lanes: np.ndarray) -> None:
        """Empty ``lanes``, bool ``[slots, lanes]``, before branches start there: copy out caches that may be chosen."""
        self._displace(state, (self._held != IDLE) & lanes)

    def _decide(self, state: DecodeState, request: int, wait: bool) -> None:
        chosen = self._select(request, self._results[request], wait) if self._select is not None else ()
        if chosen is not None:
            self.undecided.remove(request)
            self._displaced.discard(request)
            self._close(state, request, [(request, int(branch)) for branch in chosen])
        elif wait:
            raise TypeError(f"select returned None for request {request} although it was called with wait=True")

    def _close(self, state: DecodeState, request: int, chosen: list[tuple[int, int]]) -> None:
        numbers = [self._schedule.first[request] + branch for _, branch in chosen]
        self._promote(state, np.isin(self._held, numbers))
        for key in [key for key in self.promoted if key[0] == request and key not in chosen]:
            del self.promoted[key]
        self._held[(self._held != IDLE) & (self._schedule.owner[self._held] == request)] = IDLE

    def _displace(self, state: DecodeState, lanes: np.ndarray) -> None:
        self._promote(state, lanes)
        self._held[lanes] = IDLE

    def _promote(self, state: DecodeState, lanes: np.ndarray) -> None:
        for slot, lane in np.argwhere(lanes).tolist():
            key = self._schedule.key(int(self._held[slot, lane]))
            token_ids = self._flattened(*key)
            batch = self._programs.promote(state, slot, lane, capacity=self._shapes.promoted(len(token_ids)))
            self.promoted[key] = CachedTrunk(token_ids, batch, 0, self._flattened_routes(*key))

    def _flattened_routes(self, request: int, branch: int) -> np.ndarray | None:
        return self._results[request][branch].routes_from(self._requests[request].branches[branch].fork)

    def _flattened(self, request: int, branch: int) -> np.ndarray:
        prefix = self._requests[request].token_ids[: self._requests[request].branches[branch].fork]
        return np.concatenate([prefix, self._results[request][branch].token_ids]).astype(np.int32)
