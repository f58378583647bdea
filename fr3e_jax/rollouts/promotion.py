"""Ended branches that may become trunks: their caches are kept until the caller has chosen among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import DecodeState
from fr3e_jax.programs.size_buckets import size_bucket
from fr3e_jax.rollouts.requests import CachedTrunk, Rollout, Selector, TrunkRequest
from fr3e_jax.rollouts.schedule import IDLE, Schedule

LEAST_CAPACITY = 16  # of caches, in tokens
MOST_DISPLACED = 2  # trunks whose branches are all kept outside of their slot because the choice is not known yet


class Choices:
    """What becomes of ended branches in one call of `RolloutEngine.sample`.

    A cache stays in its lane until the lane or its slot is needed, then it is kept as a trunk of its own. When all
    branches of a request ended, ``select`` chooses; the caches of the others are dropped.

    Args:
      programs: to promote with.
      schedule: whose numbers name the branches.
      requests: what is sampled.
      results: their rollouts, ``[request][branch]``, filled in by the caller.
      select: see `RolloutEngine.sample`; None: nothing is kept.
    """

    def __init__(
        self,
        programs: DecoderPrograms,
        schedule: Schedule,
        requests: Sequence[TrunkRequest],
        results: list[list[Rollout | None]],
        select: Selector | None,
    ):
        self.promoted: dict[tuple[int, int], CachedTrunk] = {}
        self._programs, self._schedule, self._requests = programs, schedule, requests
        self._results, self._select = results, select
        self._held = np.full(schedule.branch.shape, IDLE, np.int64)  # ended branches whose cache a lane has
        self._undecided: list[int] = []  # requests whose branches all ended, until select has decided
        self._displaced: set[int] = set()  # those of them of which a slot went to another trunk

    def end(self, over: np.ndarray) -> None:
        """Keep the caches of the branches in ``over``, bool ``[slots, lanes]``, before the schedule frees the lanes."""
        if self._select is not None:
            self._held[over] = self._schedule.branch[over]

    def await_decision(self, requests: list[int]) -> None:
        """All branches of these requests ended."""
        self._undecided += requests

    def decide(self, state: DecodeState, wait: bool) -> None:
        """Ask for the choices that are open; with ``wait`` all of them are made."""
        for request in list(self._undecided):
            self._decide(state, request, wait)

    def vacate(self, state: DecodeState, slot: int) -> None:
        """Before a trunk takes a slot: keep elsewhere what may yet be chosen of the request that had it."""
        here = np.zeros(self._held.shape, bool)
        here[slot] = self._held[slot] != IDLE
        if not here.any():
            return
        request = int(self._schedule.owner[self._held[here][0]])
        if request in self._undecided and request not in self._displaced:
            if len(self._displaced) == MOST_DISPLACED:
                self._decide(state, request, wait=True)
                return
            self._displaced.add(request)
        self._displace(state, here)

    def clear(self, state: DecodeState, lanes: np.ndarray) -> None:
        """Before branches start in ``lanes``, bool ``[slots, lanes]``: keep elsewhere what may yet be chosen."""
        self._displace(state, (self._held != IDLE) & lanes)

    def _decide(self, state: DecodeState, request: int, wait: bool) -> None:
        chosen = self._select(request, self._results[request], wait) if self._select is not None else ()
        if chosen is not None:
            self._undecided.remove(request)
            self._displaced.discard(request)
            self._close(state, request, [(request, int(branch)) for branch in chosen])
        elif wait:
            raise TypeError(f"select returned None for request {request} although it was told to wait")

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
        if not lanes.any():
            return
        keys = [self._schedule.key(number) for number in self._held[lanes]]
        ids = [self._flattened(*key) for key in keys]
        capacity = size_bucket(max(len(x) for x in ids), LEAST_CAPACITY)
        slots, lanes_in_slot = (places.tolist() for places in np.nonzero(lanes))
        batch = self._programs.promote(state, slots, lanes_in_slot, capacity=capacity)
        for row, key in enumerate(keys):
            self.promoted[key] = CachedTrunk(ids[row], batch, row)

    def _flattened(self, request: int, branch: int) -> np.ndarray:
        prefix = self._requests[request].token_ids[: self._requests[request].branches[branch].fork]
        return np.concatenate([prefix, self._results[request][branch].token_ids]).astype(np.int32)
