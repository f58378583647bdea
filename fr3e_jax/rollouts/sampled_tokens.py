"""The tokens of all lanes so far, kept on the host, and cut into rollouts when branches end."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.rollouts.requests import Rollout

_Column = list[tuple[np.ndarray, np.ndarray]]
"""Of each chunk the tokens of each lane, ``[slots, lanes]``, and one figure of these, ``[slots, lanes, n, ...]``."""


class LaneArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of a sampled rollout, copied out of the decoder's chunks when one of its values is first read.

    Every process has the chunks of all lanes, and reads the rollouts that it grades, trains on or stores. The length is
    there without reading; for all else this is the NumPy array.
    """

    __slots__ = ("_length", "_source")

    def __init__(self, column: _Column, first: int, slot: int, lane: int, length: int):
        self._length = length
        self._source: tuple[_Column, int, int, int] | np.ndarray = (column, first, slot, lane)

    def read(self) -> np.ndarray:
        """The array; the chunks are left to other rollouts."""
        source = self._source  # other threads may read, too
        if isinstance(source, tuple):
            column, first, slot, lane = source
            source = np.concatenate([figures[slot, lane, : counts[slot, lane]] for counts, figures in column[first:]])
            self._source = source
        return source

    def __len__(self) -> int:
        return self._length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.read(), dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*map(np.asarray, inputs), **options)

    def __getitem__(self, index: Any) -> Any:
        return self.read()[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions, such as that for a copy
            raise AttributeError(name)
        return getattr(self.read(), name)


class SampledTokens:
    """Tokens by slot and lane, with the sampler's figures for each; nothing is copied when a branch ends.

    Args:
      slots, lanes: numbers of the decoder's slots and of the lanes in each.
    """

    def __init__(self, slots: int, lanes: int):
        self.generated = np.zeros((slots, lanes), np.int64)  # tokens of the lane's current or last branch
        self._columns: list[_Column] = []  # ids, log-probs, entropies, magnitudes, routes; no list is changed
        self._dropped = self._taken = 0  # chunks before those of the columns, and chunks in all
        self._first = np.zeros((slots, lanes), np.int64)  # number of the chunk in which the current branch began
        self._last = self._first  # of the branches that the last chunk ended

    def start(self, lanes: np.ndarray) -> None:
        """Begin new branches in ``lanes``, bool ``[slots, lanes]``; `cut` still works for the old until `take`."""
        self._first = np.where(lanes, self._taken, self._first)
        self.generated = np.where(lanes, 0, self.generated)

    def take(self, emitted: Emitted, active: np.ndarray) -> tuple[int, int]:
        """Take over a chunk's tokens; return the number of tokens, and of steps that the chunk took.

        Args:
          emitted: the chunk.
          active: bool ``[slots, lanes]``, the lanes that have a branch.
        """
        counts, figures = emitted.counts, [array for array in emitted[3:] if array is not None]
        steps = int(counts.max())
        if 2 * steps < figures[0].shape[2]:  # most of the chunk is empty
            figures = [array[:, :, :steps].copy() for array in figures]
        oldest = int(self._first[active].min())
        before = [column[oldest - self._dropped :] for column in self._columns] or [[] for _ in figures]
        self._columns = [[*column, (counts, array)] for column, array in zip(before, figures, strict=True)]
        self._dropped, self._taken, self._last = oldest, self._taken + 1, self._first
        self.generated = self.generated + counts
        return int(counts.sum()), steps

    def cut(self, over: np.ndarray, stopped: np.ndarray, lengths: np.ndarray) -> list[Rollout]:
        """The rollouts in the lanes of ``over``, in row-major order.

        Call it before `take` of the chunk after their last. Their arrays are `LaneArray`, and hold the chunks until
        they are read: copy what outlives the rollouts of its step.

        Args:
          over: bool ``[slots, lanes]``, the lanes to cut.
          stopped: bool ``[slots, lanes]``, the lanes that a stop token ended.
          lengths: tokens of each, `generated` in the lanes of ``over``.
        """
        first = (self._last[over] - self._dropped).tolist()
        places = zip(first, *np.nonzero(over), lengths.tolist(), stopped[over].tolist(), strict=True)
        return [self._rollout(finished, *place) for *place, finished in places]

    def _rollout(self, finished: bool, first: int, slot: int, lane: int, length: int) -> Rollout:
        arrays = [cast(np.ndarray, LaneArray(column, first, slot, lane, length)) for column in self._columns]
        return Rollout(*arrays[:4], finished=finished, routes=arrays[4] if len(arrays) > 4 else None)
