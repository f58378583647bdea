"""The tokens of all lanes so far, kept on the host, and cut into rollouts when branches end."""

from __future__ import annotations

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.rollouts.requests import Rollout

_BRANCHES = 4  # of the longest, for which a lane has columns


class SampledTokens:
    """Tokens by slot and lane, with the sampler's figures for each.

    The branches of a lane lie end to end in its columns, which are written once. So rollouts are views of them, and
    nothing is copied when a branch ends. Columns that are full are left to their rollouts.

    Args:
      slots, lanes: numbers of the decoder's slots and of the lanes in each.
    """

    def __init__(self, slots: int, lanes: int):
        self.generated = np.zeros((slots, lanes), np.int64)  # tokens of the lane's current or last branch
        kinds = (np.int32, np.float32, np.float32, np.float32)  # as the arrays of a Rollout
        self._columns = [np.zeros((slots, lanes, 0), kind) for kind in kinds]  # and [..., Q], once a chunk has routes
        self._first = np.zeros((slots, lanes), np.int64)  # column of the first token of the lane's current branch
        self._unwritten: tuple[Emitted, np.ndarray] | None = None  # the last chunk, and the columns that it begins at
        self._last = self._columns, self._first  # of the branches that the last chunk ended

    def start(self, lanes: np.ndarray) -> None:
        """Begin new branches in ``lanes``, bool ``[slots, lanes]``; `cut` still works for the old until `take`."""
        self._first = np.where(lanes, self._first + self.generated, self._first)  # new arrays: the old may be read
        self.generated = np.where(lanes, 0, self.generated)

    def make_room(self, tokens: int) -> None:
        """Make room for branches of ``tokens`` tokens in every lane; what they do not fill takes no memory."""
        if self._first.max() + tokens <= self._columns[0].shape[2]:
            return
        self._write()
        current = [*zip(*np.nonzero(self.generated), strict=True)]
        fresh = [_empty_columns(column, _BRANCHES * tokens) for column in self._columns]
        for old, new in zip(self._columns, fresh, strict=True):
            for slot, lane in current:
                start, count = self._first[slot, lane], self.generated[slot, lane]
                new[slot, lane, :count] = old[slot, lane, start : start + count]
        self._columns, self._first = fresh, np.zeros_like(self._first)

    def take(self, emitted: Emitted) -> tuple[int, int]:
        """Take over a chunk's tokens; return the number of tokens, and of steps that the chunk took.

        A lane emits tokens in the first steps of a chunk and none in the steps after.
        """
        self._write()
        counts = emitted.emitted.sum(axis=0)
        self._unwritten = emitted, self._first + self.generated
        self._last = self._columns, self._first
        self.generated = self.generated + counts
        return int(counts.sum()), int(counts.max())

    def _write(self) -> None:
        """Append the last chunk's tokens to those of the lanes; done late, so that the next chunk need not wait."""
        if self._unwritten is None:
            return
        (emitted, before), self._unwritten = self._unwritten, None
        counts = emitted.emitted.sum(axis=0).reshape(-1)
        lanes, steps, room = np.flatnonzero(counts), len(emitted.emitted), self._columns[0].shape[2]
        first = lanes * room + before.reshape(-1)[lanes]
        full = counts[lanes] == steps
        ended = [*zip(lanes[~full], first[~full], counts[lanes[~full]], strict=True)]
        for column, fresh in zip(self._columns[:4], emitted[1:5], strict=True):
            by_lane, flat = fresh.reshape(steps, -1).T, column.reshape(-1)
            if full.any():
                _stretches(flat, steps)[first[full]] = by_lane[lanes[full]]
            for lane, start, count in ended:
                flat[start : start + count] = by_lane[lane, :count]
        if emitted.routes is not None:
            self._write_routes(emitted.routes, [*zip(lanes, first, counts[lanes], strict=True)])

    def _write_routes(self, fresh: np.ndarray, places: list[tuple[int, int, int]]) -> None:
        """Append a chunk's routes ``[n, slots, lanes, Q]``; ``places``: lane, its first place among all, and tokens."""
        steps, kinds = len(fresh), fresh.shape[-1]
        if len(self._columns) == 4:
            self._columns.append(np.zeros((*self._columns[0].shape, kinds), fresh.dtype))
        by_lane, flat = fresh.reshape(steps, -1, kinds), self._columns[4].reshape(-1, kinds)
        for lane, start, count in places:
            flat[start : start + count] = by_lane[:count, lane]

    def cut(self, over: np.ndarray, stopped: np.ndarray, lengths: np.ndarray) -> list[Rollout]:
        """The rollouts in the lanes of ``over``, in row-major order.

        Call it before `take` of the chunk after their last. Their arrays are views of the lanes' columns: copy what
        outlives the rollouts of its step.

        Args:
          over: bool ``[slots, lanes]``, the lanes to cut.
          stopped: bool ``[slots, lanes]``, the lanes that a stop token ended.
          lengths: tokens of each, `generated` in the lanes of ``over``.
        """
        self._write()
        columns, first = self._last
        places = zip(*np.nonzero(over), first[over].tolist(), lengths, stopped[over].tolist(), strict=True)
        return [
            _rollout([column[slot, lane, start : start + length] for column in columns], finished)
            for slot, lane, start, length, finished in places
        ]


def _rollout(columns: list[np.ndarray], finished: bool) -> Rollout:
    routes = columns[4] if len(columns) > 4 else None
    return Rollout(*columns[:4], finished=finished, routes=routes)


def _stretches(flat: np.ndarray, length: int) -> np.ndarray:
    """A view ``[n - length + 1, length]`` of an array ``[n]``: row i holds what begins at i. Rows are copied whole."""
    return np.ndarray((len(flat) - length + 1, length), flat.dtype, flat, strides=2 * flat.strides)


def _empty_columns(like: np.ndarray, room: int) -> np.ndarray:
    """Columns ``[slots, lanes, room, ...]``; memory of zeros is taken only as it is written."""
    slots, lanes, _, *kinds = like.shape
    return np.zeros((slots, lanes, room, *kinds), like.dtype)
