"""Several sets of problems drawn in fixed shares.

The order is a pure function of (seed, position), like the order of a single set. Shares are exact in the long run, and
as even as possible at any moment (see ``part_of``). Each set runs through its own epochs, and each epoch is another
permutation by the set's own seed: no problem is skipped or repeated within an epoch. Without weights the share of a set
is its number of problems, so that one pass over the mixture is one pass over every set.

The permutations are grain's. Its ``MapDataset.mix`` is not used, because it rounds shares to a hundredth of the
smallest.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fr3e_jax.data.shuffle import shuffled_indices
from fr3e_jax.problem import Problem


class Mixture(Sequence[Problem]):
    """The problems of all parts, one part after the other; ``order`` gives the order of the draws.

    Args:
      parts: maps names to problems; no part is empty. The name seeds a part's permutations, so that adding a part
        keeps the inner order of the others.
      weights: the relative share of each part, positive; empty for shares by number of problems.
    """

    def __init__(self, parts: Mapping[str, Sequence[Any]], weights: Sequence[float] = ()):
        if weights and len(weights) != len(parts):
            raise ValueError(f"got {len(weights)} weights for {len(parts)} parts; expected one for each, or none")
        if not parts or not all(len(problems) for problems in parts.values()):
            raise ValueError(
                f"a mixture needs parts that are not empty, got { ({n: len(p) for n, p in parts.items()}) }"
            )
        self.parts = dict(parts)
        self.weights = whole_numbers(weights or [len(problems) for problems in parts.values()])
        self._ends = list(itertools.accumulate(len(problems) for problems in parts.values()))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        source = bisect.bisect_right(self._ends, index)
        problems = list(self.parts.values())[source]
        return problems[index - self._ends[source] + len(problems)]

    def order(self, seed: int) -> MixtureOrder:
        """The endless order of indices into this sequence."""
        lengths = [len(problems) for problems in self.parts.values()]
        starts = [end - length for end, length in zip(self._ends, lengths, strict=True)]
        seeds = [(seed, _number(name)) for name in self.parts]
        return MixtureOrder(self.weights, starts, [shuffled_indices(n, s) for n, s in zip(lengths, seeds, strict=True)])


@dataclass(frozen=True)
class MixtureOrder:
    """``order[position]`` is the index drawn at that position."""

    weights: tuple[int, ...]
    starts: Sequence[int]
    shuffled: Sequence[Sequence[int]]

    def __getitem__(self, position: int) -> int:
        source, draw = part_of(position, self.weights)
        return self.starts[source] + self.shuffled[source][draw]


def part_of(position: int, weights: Sequence[int]) -> tuple[int, int]:
    """The part that is drawn at a position, and the number of earlier draws of that part.

    Draw k of a part of weight w is due at time ``(k + 1/2) / w``, and draws happen in the order of their times (the
    rule of Webster for apportioning seats). With n parts of total weight W, after p draws a part has had its share
    ``p*w/W`` up to ``1/2 + n*w/2W``; after every W draws it has had exactly its share. All numbers are whole, so
    nothing drifts. The time is constant: only the last n or so draws before ``position`` are computed.
    """
    total, start = sum(weights), max(position - len(weights), 0)
    counts = [(2 * start * weight + total) // (2 * total) for weight in weights]  # draws due at time start / total
    waiting = position - sum(counts)
    scale = math.lcm(*weights)
    periods = [scale // weight for weight in weights]
    while True:
        source = min(range(len(weights)), key=lambda i: (2 * counts[i] + 1) * periods[i])
        if not waiting:
            return source, counts[source]
        counts[source] += 1
        waiting -= 1


def whole_numbers(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest whole numbers in the same proportions; 0.1 means exactly one tenth."""
    exact = [Fraction(repr(weight)) for weight in weights]
    if not all(fraction > 0 for fraction in exact):
        raise ValueError(f"weights are {list(weights)}; expected numbers above 0")
    common = math.lcm(*(fraction.denominator for fraction in exact))
    scaled = [int(fraction * common) for fraction in exact]
    return tuple(value // math.gcd(*scaled) for value in scaled)


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, person=b"mixture part").digest(), "little")
