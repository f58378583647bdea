"""The assignment of trunks to slots and of branches to lanes: arithmetic on the host, without a device.

Trunks take slots, those with the most tokens to decode first. A trunk's branches take the lanes of its slot, the
longest first. If a slot is free and no trunk waits, it takes another copy of the trunk with the most queued tokens per
slot, so that no lane idles while work is queued. Every choice follows from the requests and the ended branches alone.

Branches are numbered through all requests: branch ``b`` of request ``i`` has the number ``first[i] + b``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

IDLE = -1
_PATIENCE_SHARE = 16  # with branches queued, a chunk stops when one lane in this many has ended


def filled_lanes(branches: int, *, alike: bool) -> int:
    """Lanes of a slot that a trunk's branches keep busy: one each if their caps are ``alike``, else half as many.

    Branches that leave their trunk at several depths have several lengths. In half the lanes a short one follows a long
    one, where in a lane each it would leave it idle.
    """
    return branches if alike else -(-branches // 2)


class SlotAssignment(NamedTuple):
    """The trunk of ``request`` takes ``slot``; ``source`` is a slot that holds the trunk already, or None."""

    slot: int
    request: int
    source: int | None


class Schedule:
    """Slots and lanes of one decoder, and the trunks and branches that wait for them.

    Args:
      limits: ``limits[i][b]``, the cap on the tokens of branch b of request i.
      slots: number of trunk slots.
      lanes: lanes of each slot.
    """

    def __init__(self, limits: Sequence[Sequence[int]], slots: int, lanes: int):
        counts = [len(row) for row in limits]
        self.first = np.cumsum([0, *counts])
        self.owner = np.repeat(np.arange(len(limits)), counts)
        self.limits = np.array([limit for row in limits for limit in row], np.int64)
        self._queues = [
            deque((np.argsort(-np.asarray(row, np.int64), kind="stable") + start).tolist())
            for start, row in zip(self.first[:-1], limits, strict=True)
        ]
        self._queued_tokens = np.array([sum(row) for row in limits], np.int64)
        requested = [i for i, count in enumerate(counts) if count]
        self.waiting = deque(sorted(requested, key=(-self._queued_tokens).tolist().__getitem__))
        self._unfinished = np.array(counts, np.int64)
        self.slot_request = np.full(slots, IDLE, np.int64)
        self.branch = np.full((slots, lanes), IDLE, np.int64)

    @property
    def active(self) -> np.ndarray:
        """Bool ``[slots, lanes]``: lanes that have a branch."""
        return self.branch != IDLE

    def key(self, branch: int) -> tuple[int, int]:
        """``(request, branch)`` of the branch with this number."""
        request = int(self.owner[branch])
        return request, int(branch - self.first[request])

    def assign(self) -> tuple[list[SlotAssignment], np.ndarray]:
        """Give free slots to trunks and idle lanes to branches.

        Returns:
          The trunks that take a slot, each trunk's first slot before its others; and the lanes that start a branch,
          bool ``[slots, lanes]``.
        """
        placed: list[SlotAssignment] = []
        new = np.zeros(self.branch.shape, bool)
        for slot in np.flatnonzero(self.slot_request == IDLE)[: len(self.waiting)]:
            self._place(slot, self.waiting.popleft(), placed)
        for slot in np.flatnonzero((self.slot_request != IDLE) & ~self.active.all(axis=1)):
            self._fill(slot, new)
        for slot in np.flatnonzero(self.slot_request == IDLE):
            if not self._queued_tokens.any():
                break
            self._place(slot, self._most_queued(), placed)
            self._fill(slot, new)
        return placed, new

    def end(self, over: np.ndarray) -> list[int]:
        """Free the lanes in ``over``, bool ``[slots, lanes]``; return the requests whose last branch has now ended."""
        owners = self.owner[self.branch[over]]
        self.branch[over] = IDLE
        np.subtract.at(self._unfinished, owners, 1)
        for slot in np.flatnonzero((self.slot_request != IDLE) & ~self.active.any(axis=1)):
            if not self._queues[self.slot_request[slot]]:
                self.slot_request[slot] = IDLE
        return [int(request) for request in np.unique(owners) if not self._unfinished[request]]

    def patience(self) -> int:
        """Number of ended lanes after which a chunk stops: few while queued branches can use them, else all.

        A waiting trunk does not count: it needs a whole slot, and slots rarely become free much before a chunk's end.
        """
        queued = self._queued_tokens[self.slot_request[self.slot_request != IDLE]]
        return max(1, self.branch.size // _PATIENCE_SHARE) if queued.any() else self.branch.size

    def _place(self, slot: int, request: int, placed: list[SlotAssignment]) -> None:
        has_it = np.flatnonzero(self.slot_request == request)
        placed.append(SlotAssignment(int(slot), request, int(has_it[0]) if has_it.size else None))
        self.slot_request[slot] = request

    def _fill(self, slot: int, new: np.ndarray) -> None:
        queue = self._queues[self.slot_request[slot]]
        if not queue:
            return
        for lane in np.flatnonzero(self.branch[slot] == IDLE)[: len(queue)]:
            branch = self.branch[slot, lane] = queue.popleft()
            self._queued_tokens[self.slot_request[slot]] -= self.limits[branch]
            new[slot, lane] = True

    def _most_queued(self) -> int:
        """The request with the most queued tokens per slot that it holds; of equals, the first."""
        slots = np.bincount(self.slot_request[self.slot_request != IDLE], minlength=len(self._queues))
        return int(np.argmax(self._queued_tokens / np.maximum(slots, 1)))
