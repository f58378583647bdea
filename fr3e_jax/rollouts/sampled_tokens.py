"""The tokens of all lanes so far, kept on the host, and cut into rollouts when branches end."""

from __future__ import annotations

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.rollouts.requests import Rollout


class SampledTokens:
    """Tokens by slot and lane, with the sampler's figures for each.

    Args:
      slots, lanes: numbers of the decoder's slots and of the lanes in each.
    """

    def __init__(self, slots: int, lanes: int):
        self.generated = np.zeros((slots, lanes), np.int64)  # tokens of the lane's current or last branch
        kinds = (np.int32, np.float32, np.float32, np.float32)  # as the arrays of a Rollout
        self._columns = [np.zeros((slots, lanes, 0), kind) for kind in kinds]  # and [..., Q], once a chunk has routes
        self._unwritten: tuple[Emitted, np.ndarray] | None = None  # the last chunk, and `generated` before it

    def start(self, lanes: np.ndarray) -> None:
        """Begin new branches in ``lanes``, bool ``[slots, lanes]``; `cut` still works for the old until `take`."""
        self.generated = np.where(lanes, 0, self.generated)  # a new array: the old one may still be read

    def make_room(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in every lane; what they do not fill takes no memory."""
        if tokens > self._columns[0].shape[2]:
            self._columns = [_longer(column, tokens) for column in self._columns]

    def take(self, emitted: Emitted) -> tuple[int, int]:
        """Take over a chunk's tokens; return the number of tokens, and of steps that the chunk took.

        A lane emits tokens in the first steps of a chunk and none in the steps after.
        """
        self._write()
        counts = emitted.emitted.sum(axis=0)
        self._unwritten = emitted, self.generated
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

        Call it before `take` of the chunk after their last. Their arrays are slices of common arrays.

        Args:
          over: bool ``[slots, lanes]``, the lanes to cut.
          stopped: bool ``[slots, lanes]``, the lanes that a stop token ended.
          lengths: tokens of each, `generated` in the lanes of ``over``.
        """
        self._write()
        places = list(zip(*np.nonzero(over), lengths, strict=True))
        parts = [[column[slot, lane, :length] for slot, lane, length in places] for column in self._columns]
        columns = [np.concatenate(pieces_of_column) if pieces_of_column else np.zeros(0) for pieces_of_column in parts]
        ends = np.cumsum(lengths).tolist()
        pieces = zip([0, *ends], ends, stopped[over].tolist(), strict=False)

        def cut(a, b):
            return [column[a:b] for column in columns]

        return [_rollout(cut(a, b), finished) for a, b, finished in pieces]


def _rollout(columns: list[np.ndarray], finished: bool) -> Rollout:
    routes = columns[4] if len(columns) > 4 else None
    return Rollout(*columns[:4], finished=finished, routes=routes)


def _stretches(flat: np.ndarray, length: int) -> np.ndarray:
    """A view ``[n - length + 1, length]`` of an array ``[n]``: row i holds what begins at i. Rows are copied whole."""
    return np.ndarray((len(flat) - length + 1, length), flat.dtype, flat, strides=2 * flat.strides)


def _longer(column: np.ndarray, room: int) -> np.ndarray:
    """The column with more room; memory of zeros is taken only as it is written."""
    slots, lanes, filled, *kinds = column.shape
    longer = np.zeros((slots, lanes, room, *kinds), column.dtype)
    longer[:, :, :filled] = column
    return longer
