"""What the lanes have drawn so far, kept on the host, and cut into rollouts as branches end."""

from __future__ import annotations

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.programs.size_buckets import power_of_two
from fr3e_jax.rollouts.requests import Rollout


class Harvest:
    """Drawn tokens by slot and lane, with what the sampler saw at each.

    Args:
      slots, lanes: of the decoder.
    """

    def __init__(self, slots: int, lanes: int):
        self.generated = np.zeros((slots, lanes), np.int64)  # tokens of the branch that is in the lane, or was last
        kinds = (np.int32, np.float32, np.float32, np.float32)  # as the arrays of a Rollout
        self._drawn = [np.zeros((slots, lanes, 0), kind) for kind in kinds]
        self._unwritten: tuple[Emitted, np.ndarray] | None = None  # of the last chunk, and `generated` before it

    def start(self, lanes: np.ndarray) -> None:
        """Begin new branches in ``lanes``, bool ``[slots, lanes]``; until the next `take` those before can be cut."""
        self.generated = np.where(lanes, 0, self.generated)  # a new array: `cut` may still be asked about the old one

    def make_room(self, tokens: int) -> None:
        """Room for ``tokens`` tokens in every lane."""
        *lanes, room = self._drawn[0].shape
        if tokens > room:
            more = (*lanes, power_of_two(tokens) - room)
            self._drawn = [np.concatenate([column, np.zeros(more, column.dtype)], 2) for column in self._drawn]

    def take(self, emitted: Emitted) -> tuple[int, int]:
        """Take over what a chunk drew; returns how many tokens, and how many steps the chunk took.

        A lane emits in the first steps of a chunk and then not at all.
        """
        self._write()
        counts = emitted.emitted.sum(axis=0)
        self._unwritten = emitted, self.generated
        self.generated = self.generated + counts
        return int(counts.sum()), int(counts.max())

    def _write(self) -> None:
        """Put what the last chunk drew behind what the lanes have; not at once, the next chunk need not wait for it."""
        if self._unwritten is None:
            return
        (emitted, before), self._unwritten = self._unwritten, None
        step, slot, lane = np.nonzero(emitted.emitted)
        position = before[slot, lane] + step
        for column, fresh in zip(self._drawn, emitted[1:5], strict=True):
            column[slot, lane, position] = fresh[step, slot, lane]

    def cut(self, over: np.ndarray, stopped: np.ndarray, lengths: np.ndarray) -> list[Rollout]:
        """The rollouts in the lanes of ``over``, in row-major order; before the chunk behind their last is taken over.

        Their arrays are pieces of common ones: four copies for all of them, not for each.

        Args:
          over, stopped: bool ``[slots, lanes]``.
          lengths: their tokens, `generated` in the lanes of ``over``.
        """
        self._write()
        filled = np.arange(self._drawn[0].shape[2]) < lengths[:, None]
        columns = [column[over][filled] for column in self._drawn]
        ends = np.cumsum(lengths).tolist()
        pieces = zip([0, *ends], ends, stopped[over].tolist(), strict=False)
        return [Rollout(*(column[a:b] for column in columns), finished=finished) for a, b, finished in pieces]
