"""The parts of a row plan: branches, rows, and shapes of micro-batches; `fr3e_jax.policy.rows` draws the layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fr3e_jax.programs.size_buckets import power_of_two

WINDOW = 3  # lanes that a token sees where branches lie end to end (docs/developers/performance_notebook.md)
SHARED_ROW = 256  # trunk positions of a row of several trunks: every lane's token scores all of them
_LEAST_TRUNK = 16


class Branch(NamedTuple):
    """A branch of a trunk: its number there, the trunk positions it sees, and its tokens."""

    number: int
    fork: int
    length: int


Branches = list[Branch]  # of a trunk, the longest first, ties by number


@dataclass
class Row:
    """The trunks of a row, and its branches as (trunk, branch, start in the lanes).

    With ``crossing`` the branches lie end to end over all lanes, else each in the first lane with room for it. The row
    holds only the trunk positions that its branches see.
    """

    capacity: int
    crossing: bool
    trunks: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # positions of each trunk
    branches: list[tuple[int, int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # filled positions of each lane; crossing: of all together

    @property
    def filled(self) -> int:
        """The number of trunk positions."""
        return sum(self.sizes)

    @property
    def lanes(self) -> int:
        """The number of lanes in use."""
        return -(-self.ends[0] // self.capacity) if self.crossing else len(self.ends)

    def add(self, index: int, branches: Branches, lanes: int = 1 << 30) -> Branches:
        """Place a trunk and its branches, longest first; return the branches that ``lanes`` lanes cannot hold.

        An empty row takes the first branch at any length.
        """
        room, most = (self.capacity * lanes, 1) if self.crossing else (self.capacity, lanes)
        left_over, size = [], 0
        for branch in branches:
            lane = next((n for n, end in enumerate(self.ends) if end + branch.length <= room), len(self.ends))
            if lane == most:
                left_over.append(branch)
                continue
            if lane == len(self.ends):
                self.ends.append(0)
            self.branches.append((index, branch.number, lane * self.capacity + self.ends[lane]))
            self.ends[lane] += branch.length
            size = max(size, branch.fork)
        self.trunks.append(index)
        self.sizes.append(size)
        return left_over


class RowShape(NamedTuple):
    """The shape of a micro-batch: rows, trunk positions and lanes of each, positions of a lane, lanes a token sees."""

    rows: int
    trunk_size: int
    lanes: int
    capacity: int
    window: int = 1

    @property
    def positions(self) -> int:
        """The positions of the micro-batch, padding counted."""
        return self.rows * (self.trunk_size + self.room)

    @property
    def room(self) -> int:
        """Positions of a row's lanes."""
        return self.lanes * self.capacity

    @property
    def trunk_lanes(self) -> int:
        """Lanes that the losses of trunk tokens need."""
        return -(-self.trunk_size // self.capacity)


Plan = list[tuple[list[Row], RowShape]]  # micro-batches: their rows with content, and their shape


def trunk_bucket(size: int, lanes: int) -> int:
    """``size`` trunk positions of a row, rounded up.

    Trunks that may share a row get a power of two, since lanes make most of such a row. Steps finer than about an
    eighth of the positions of all ``lanes`` are not worth a compilation. Longer trunks get a multiple of an eighth of
    the next power of two, and at most of 1024: so many empty positions are worth a compilation.
    """
    if size > SHARED_ROW:
        return whole_steps(size, min(power_of_two(size) // 8, 1024))
    return power_of_two(size, 1 << max(lanes // 8, _LEAST_TRUNK).bit_length() - 1)


def whole_steps(size: int, step: int) -> int:
    """``size`` rounded up to a multiple of ``step``."""
    return -(-size // step) * step
