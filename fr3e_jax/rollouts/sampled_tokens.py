"""The tokens of all lanes so far, kept on the host, and cut into rollouts when branches end."""

from __future__ import annotations

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.programs.size_buckets import power_of_two
from fr3e_jax.rollouts.requests import Rollout


class SampledTokens:
    """Tokens by slot and lane, with the sampler's figures for each.

    Args:
      slots, lanes: numbers of the decoder's slots and of the lanes in each.
    """

    CHANGING = ("generated", "columns")

    def __init__(self, slots: int, lanes: int):
        self.generated = np.zeros((slots, lanes), np.int64)  # tokens of the lane's current or last branch
        kinds = (np.int32, np.float32, np.float32, np.float32)  # as the arrays of a Rollout
        self._columns = [np.zeros((slots, lanes, 0), kind) for kind in kinds]
        self._unwritten: tuple[Emitted, np.ndarray] | None = None  # the last chunk, and `generated` before it

    @property
    def columns(self) -> list[np.ndarray]:
        """The tokens of all lanes and their figures, each ``[slots, lanes, room]``."""
        self._write()
        return self._columns

    @columns.setter
    def columns(self, found: list[np.ndarray]) -> None:
        self._columns, self._unwritten = found, None

    def start(self, lanes: np.ndarray) -> None:
        """Begin new branches in ``lanes``, bool ``[slots, lanes]``; `cut` still works for the old until `take`."""
        self.generated = np.where(lanes, 0, self.generated)  # a new array: the old one may still be read

    def make_room(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in every lane."""
        *lanes, room = self._columns[0].shape
        if tokens > room:
            more = (*lanes, power_of_two(tokens) - room)
            self._columns = [np.concatenate([column, np.zeros(more, column.dtype)], 2) for column in self._columns]

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
        lanes, room = np.flatnonzero(counts), self._columns[0].shape[2]
        step = np.arange(len(emitted.emitted))
        place = (lanes * room + before.reshape(-1)[lanes])[:, None] + step
        real = None if (counts[lanes] == len(step)).all() else step < counts[lanes, None]
        for column, fresh in zip(self._columns, emitted[1:5], strict=True):
            # The lanes' tokens in turn: numpy then reads and writes stretches, not one token here and one there.
            by_lane = fresh.reshape(len(step), -1).T[lanes]
            flat = column.reshape(-1)
            if real is None:
                flat[place] = by_lane
            else:
                flat[place[real]] = by_lane[real]

    def cut(self, over: np.ndarray, stopped: np.ndarray, lengths: np.ndarray) -> list[Rollout]:
        """The rollouts in the lanes of ``over``, in row-major order.

        Call it before `take` of the chunk after their last. Their arrays are slices of four common arrays.

        Args:
          over: bool ``[slots, lanes]``, the lanes to cut.
          stopped: bool ``[slots, lanes]``, the lanes that a stop token ended.
          lengths: tokens of each, `generated` in the lanes of ``over``.
        """
        self._write()
        places = list(zip(*np.nonzero(over), lengths, strict=True))
        parts = [[column[slot, lane, :length] for slot, lane, length in places] for column in self._columns]
        columns = [np.concatenate(own) if own else np.zeros(0) for own in parts]
        ends = np.cumsum(lengths).tolist()
        pieces = zip([0, *ends], ends, stopped[over].tolist(), strict=False)
        return [Rollout(*(column[a:b] for column in columns), finished=finished) for a, b, finished in pieces]
