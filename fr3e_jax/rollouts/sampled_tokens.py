"""The tokens of all lanes so far, kept on the host, and cut into rollouts when branches end."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.rollouts.requests import Rollout


class _Chunk(NamedTuple):
    """The tokens of a chunk of decode steps."""

    counts: np.ndarray  # [slots, lanes], tokens of each lane
    columns: list[np.ndarray]  # token ids, log-probs, entropies, magnitudes and perhaps routes, [slots, lanes, n, ...]


class _LaneTokens:
    """The tokens of one branch: they stay in the chunks of its lane until one of them is read."""

    __slots__ = ("_place", "_source")

    def __init__(self, chunks: list[_Chunk], first: int, slot: int, lane: int):
        """``chunks``: shared with other branches; those of this one begin at number ``first``."""
        self._place = first, slot, lane
        self._source: tuple[list[_Chunk], list[np.ndarray]] = chunks, []  # one attribute: threads may read at once

    def column(self, number: int) -> np.ndarray:
        chunks, columns = self._source
        if chunks:
            first, slot, lane = self._place
            chunks = chunks[first:]
            counts = [chunk.counts[slot, lane] for chunk in chunks]
            by_chunk = [
                [column[slot, lane, :count] for column in chunk.columns]
                for chunk, count in zip(chunks, counts, strict=True)
            ]
            columns = [np.concatenate(stretches) for stretches in zip(*by_chunk, strict=True)]
            self._source = [], columns
        return columns[number]


class LaneArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of a sampled rollout; its values are copied out of the decoder's chunks when they are first read.

    Every process has the chunks of all lanes, and reads the rollouts that it grades, trains on or stores. The length is
    there without reading; for all else this is the NumPy array.
    """

    __slots__ = ("_column", "_length", "_tokens")

    def __init__(self, tokens: _LaneTokens, column: int, length: int):
        self._tokens, self._column, self._length = tokens, column, length

    def __len__(self) -> int:
        return self._length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._tokens.column(self._column), dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*map(np.asarray, inputs), **options)

    def __getitem__(self, index: Any) -> Any:
        return self._tokens.column(self._column)[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions, such as that for a copy
            raise AttributeError(name)
        return getattr(self._tokens.column(self._column), name)


class SampledTokens:
    """Tokens by slot and lane, with the sampler's figures for each; nothing is copied when a branch ends.

    Args:
      slots, lanes: numbers of the decoder's slots and of the lanes in each.
    """

    def __init__(self, slots: int, lanes: int):
        self.generated = np.zeros((slots, lanes), np.int64)  # tokens of the lane's current or last branch
        self._chunks: list[_Chunk] = []  # from that on in which the oldest current branch began
        self._dropped = 0  # chunks before these
        self._first = np.zeros((slots, lanes), np.int64)  # number of the chunk in which the current branch began
        self._last = self._first  # of the branches that the last chunk ended

    def start(self, lanes: np.ndarray) -> None:
        """Begin new branches in ``lanes``, bool ``[slots, lanes]``; `cut` still works for the old until `take`."""
        self._first = np.where(lanes, self._dropped + len(self._chunks), self._first)
        self.generated = np.where(lanes, 0, self.generated)

    def take(self, emitted: Emitted, active: np.ndarray) -> tuple[int, int]:
        """Take over a chunk's tokens; return the number of tokens, and of steps that the chunk took.

        Args:
          emitted: the chunk.
          active: bool ``[slots, lanes]``, the lanes that have a branch.
        """
        counts, columns = emitted.counts, [column for column in emitted[3:] if column is not None]
        steps = int(counts.max())
        if 2 * steps < columns[0].shape[2]:  # most of the chunk is empty
            columns = [column[:, :, :steps].copy() for column in columns]
        oldest = int(self._first[active].min()) - self._dropped
        self._chunks = [*self._chunks[oldest:], _Chunk(counts, columns)]
        self._dropped, self._last = self._dropped + oldest, self._first
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
        places = zip(*np.nonzero(over), first, lengths.tolist(), stopped[over].tolist(), strict=True)
        return [self._rollout(*place) for place in places]

    def _rollout(self, slot: int, lane: int, first: int, length: int, finished: bool) -> Rollout:
        tokens = _LaneTokens(self._chunks, first, slot, lane)
        arrays = [
            cast(np.ndarray, LaneArray(tokens, column, length)) for column in range(len(self._chunks[-1].columns))
        ]
        return Rollout(*arrays[:4], finished=finished, routes=arrays[4] if len(arrays) > 4 else None)
