"""The endless, resumable order in which prompts are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fr3e_jax.data.mixture import Mixture
from fr3e_jax.data.problem import Problem
from fr3e_jax.data.shuffle import shuffled_indices

MAX_DROPPED_IN_A_ROW = 10_000
MAX_REMEMBERED = 2**24  # problems whose lengths are remembered, in 4 bytes each


class PromptStream:
    """Draws problems without end, reshuffled each epoch; the same order however many are taken at a time.

    There is one order for all processes: each keeps the same global ``position`` and takes its share of what is drawn.
    Prompts of more than ``max_prompt_tokens`` tokens are passed over and counted, never cut. To resume, on any number
    of processes, set ``position`` (and ``dropped_too_long``, if its count matters) to the value it had.

    Args:
      problems: any sequence; it is indexed, never copied. A ``Mixture`` is drawn in its shares.
      seed: of the order.
      encode: the text of a problem's prompt to token ids, to measure it; called once per problem, not once per epoch.
      max_prompt_tokens: the longest prompt that is drawn.
    """

    def __init__(
        self, problems: Sequence[Problem], seed: int, encode: Callable[[str], Sequence[int]], max_prompt_tokens: int
    ):
        self.position = 0  # index in the stream of the next problem to look at
        self.dropped_too_long = 0
        self._problems = problems
        self._order = problems.order(seed) if isinstance(problems, Mixture) else shuffled_indices(len(problems), seed)
        self._encode = encode
        self._max_prompt_tokens = max_prompt_tokens
        self._lengths = np.full(len(problems), -1, np.int32) if len(problems) <= MAX_REMEMBERED else None

    def next(self, count: int, process_index: int = 0, process_count: int = 1) -> list[tuple[int, Problem]]:
        """This process's share of the next ``count`` problems, with their positions.

        Positions are unique in the stream, the same on every number of processes, and key sampling noise. Process i of
        n takes the i-th, (i+n)-th, ... of the ``count``; the shares of all processes, sorted by position, are what one
        process would draw. Every process must call this with the same ``count``.

        Raises:
          ValueError: no prompt was short enough for a whole epoch, or 10,000 in a row; or there is no such process.
        """
        if not 0 <= process_index < process_count:
            raise ValueError(f"process_index is {process_index}; expected 0 to {process_count - 1}")
        return [self._next() for _ in range(count)][process_index::process_count]

    def problem_at(self, position: int) -> Problem:
        """The problem that was drawn with this position."""
        return self._problems[self._order[position]]

    def _next(self) -> tuple[int, Problem]:
        lengths: list[int] = []
        while len(lengths) < min(len(self._problems), MAX_DROPPED_IN_A_ROW):
            position, index = self.position, int(self._order[self.position])
            problem = self._problems[index]
            length = self._length(index, problem)
            self.position += 1
            if length <= self._max_prompt_tokens:
                return position, problem
            self.dropped_too_long += 1
            lengths.append(length)
        raise ValueError(
            f"{len(lengths)} prompts in a row are longer than data.max_prompt_tokens={self._max_prompt_tokens}; the "
            f"shortest of them has {min(lengths)} tokens: raise data.max_prompt_tokens"
        )

    def _length(self, index: int, problem: Problem) -> int:
        if self._lengths is None:
            return len(self._encode(problem.prompt))
        if self._lengths[index] < 0:
            self._lengths[index] = len(self._encode(problem.prompt))
        return int(self._lengths[index])
