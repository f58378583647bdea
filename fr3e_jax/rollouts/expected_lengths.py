"""The lengths that a recipe expects of its responses: sizes are chosen by them before any response is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fr3e_jax.configuration.schema import Config

COUNT = 256  # lengths of the distribution
_GOLDEN = (5**0.5 - 1) / 2  # its multiples, less whole numbers, lie evenly between 0 and 1


def expected_lengths(mean: int, cap: int) -> np.ndarray:
    """Tokens of `COUNT` responses in rising order, int64, each at least 1.

    Up to half of the cap, the lengths have a long tail: they are exponential, and longer ones are cut. Beyond, they lie
    evenly between ``2 mean - cap`` and the cap.

    Args:
      mean: tokens of a response; 0: half of the cap.
      cap: the most tokens of a response.
    """
    mean, at = mean or max(cap // 2, 1), (np.arange(COUNT) + 0.5) / COUNT
    lengths = -mean * np.log1p(-at) if mean <= cap / 2 else 2 * mean - cap + at * 2 * (cap - mean)
    return np.clip(np.rint(lengths), 1, cap).astype(np.int64)


@dataclass(frozen=True)
class ExpectedLengths:
    """The lengths of branches that are distributed as `expected_lengths`.

    Attributes:
      mean: tokens of a response.
      cap: the most tokens of a response; a branch with a lower limit goes on after the tokens that it lacks.
    """

    mean: int
    cap: int

    @cached_property
    def _lengths(self) -> np.ndarray:
        return expected_lengths(self.mean, self.cap)

    def of(self, limits: Sequence[Sequence[int]]) -> list[list[int]]:
        """Tokens of branches with these caps, each at least 1: evenly spread lengths, always the same ones."""
        number, found = 0, []
        for row in limits:
            found.append([])
            for limit in row:
                number += 1
                found[-1].append(min(rest_of(self._lengths, self.cap, limit, number * _GOLDEN % 1), limit))
        return found


def rest_of(lengths: np.ndarray, cap: int, limit: int, at: float) -> int:
    """Tokens that a branch adds to those before it, at least 1.

    Args:
      lengths: of whole responses, in rising order.
      cap: the most tokens of a whole response.
      limit: the most tokens of the branch; the response has the other tokens of the cap already.
      at: the place among the ``lengths`` that are longer, in [0, 1).
    """
    before = max(cap - limit, 0)
    first = int(np.searchsorted(lengths, before, "right"))
    return int(lengths[first + int(at * (len(lengths) - first))]) - before if first < len(lengths) else 1


def configured_lengths(config: Config) -> ExpectedLengths | None:
    """The lengths that a recipe states; None: it states none."""
    rollout = config.rollout
    return ExpectedLengths(rollout.expected_tokens, rollout.max_response_tokens) if rollout.expected_tokens else None
