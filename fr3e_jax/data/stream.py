"""The endless, resumable order in which prompts are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grain
import numpy as np

from fr3e_jax.data.task import Problem

MAX_LENGTH = 2**32 - 1
MAX_DROPPED_IN_A_ROW = 10_000


def shuffled_indices(length: int, seed: int) -> grain.MapDataset:
    """``[i]`` is the i-th index of an endless sequence of epochs, each another permutation of ``range(length)``.

    Random access in constant time and memory: the permutation is a block cipher, not a table.
    """
    if not 0 < length <= MAX_LENGTH:
        raise ValueError(f"cannot shuffle {length} problems; expected from 1 to {MAX_LENGTH}")
    # grain takes seed + epoch as the key of an epoch; hashed first, or seed 1 would start with the second epoch of 0.
    key = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return grain.MapDataset.range(length).shuffle(seed=key).repeat()


class PromptStream:
    """Draws problems without end, reshuffled each epoch; the same order however many are taken at a time.

    Prompts of more than ``max_prompt_tokens`` tokens are passed over and counted, never cut. To resume, set
    ``position`` (and ``dropped_too_long``, if its count matters) to the value it had.

    Args:
      problems: any sequence; it is indexed, never copied.
      seed: of the order.
      encode: text to token ids, to measure prompts.
      max_prompt_tokens: the longest prompt that is drawn.
    """

    def __init__(
        self, problems: Sequence[Problem], seed: int, encode: Callable[[str], Sequence[int]], max_prompt_tokens: int
    ):
        self.position = 0  # index in the stream of the next problem to look at
        self.dropped_too_long = 0
        self._problems = problems
        self._order = shuffled_indices(len(problems), seed)
        self._encode = encode
        self._max_prompt_tokens = max_prompt_tokens

    def next(self, count: int) -> list[tuple[int, Problem]]:
        """The next ``count`` problems with their positions, which are unique in the stream and key sampling noise.

        Raises:
          ValueError: no prompt was short enough for a whole epoch, or 10,000 in a row.
        """
        return [self._next() for _ in range(count)]

    def problem_at(self, position: int) -> Problem:
        """The problem that was drawn with this position."""
        return self._problems[self._order[position]]

    def _next(self) -> tuple[int, Problem]:
        lengths: list[int] = []
        while len(lengths) < min(len(self._problems), MAX_DROPPED_IN_A_ROW):
            position = self.position
            problem = self._problems[self._order[position]]
            self.position += 1
            length = len(self._encode(problem.prompt))
            if length <= self._max_prompt_tokens:
                return position, problem
            self.dropped_too_long += 1
            lengths.append(length)
        raise ValueError(
            f"{len(lengths)} prompts in a row are longer than data.max_prompt_tokens={self._max_prompt_tokens}; the "
            f"shortest of them has {min(lengths)} tokens: raise data.max_prompt_tokens"
        )
