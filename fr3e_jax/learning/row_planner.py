"""The planner of rows: branches and their trunks into rows, and rows into micro-batches of declared shapes alone.

A row holds whole trunks up to the largest fork of its branches. Short branches lie end to end over all
lanes, long ones in one lane each. `plan_rows` tries every selection of the declared rows and takes the plan with
the least work. `fr3e_jax.learning.declared_rows` chooses the shapes before the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.size_buckets import size_bucket

CALL = 1 / 64  # work of a call beside its positions, as a part of the largest micro-batch
_OPEN_ROWS = 32  # the last rows that a further trunk may join
LEAST_SIZE = 16  # positions of a trunk or a lane


class RowBranch(NamedTuple):
    """A branch of a trunk: its index there, the trunk positions it sees, and its tokens."""

    index: int
    fork: int
    length: int


@dataclass
class Row:
    """The trunks of a row, and its branches as (trunk, branch, start in the lanes).

    Branches lie end to end over all lanes if ``shape`` lets them cross, else each in the first lane with room for it.
    """

    shape: RowShape  # of one row: its limits
    trunks: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # positions of each trunk
    filled: int = 0  # positions of all trunks
    branches: list[tuple[int, int, int]] = field(default_factory=list)
    ends: list[int] = field(init=False)  # filled positions of each lane; of all together where branches cross
    tokens: int = 0  # of all branches

    def __post_init__(self):
        self.crosses, self.longest = self.shape.window > 1, self.shape.longest_branch
        self.limit, lanes = (self.shape.room, 1) if self.crosses else (self.shape.capacity, self.shape.lanes)
        self.ends, self.room = [0] * lanes, self.limit  # room: in the emptiest lane

    def add(self, trunk: int, branches: Sequence[RowBranch]) -> list[RowBranch]:
        """Add branches of a trunk, longest first, as long as they have room; return the others."""
        size = self.sizes[-1] if self.trunks[-1:] == [trunk] else 0
        before = self.filled - size
        left, largest = [], self.shape.trunk_size - before
        for branch in branches:
            if branch.fork > largest or branch.length > self.longest or branch.length > self.room:
                left.append(branch)
                continue
            lane = next(n for n, end in enumerate(self.ends) if end + branch.length <= self.limit)
            self.branches.append((trunk, branch.index, lane * self.shape.capacity + self.ends[lane]))
            self.ends[lane] += branch.length
            self.room = self.limit - min(self.ends)
            self.tokens += branch.length
            size = max(size, branch.fork)
        if self.trunks[-1:] == [trunk]:
            self.sizes[-1] = size
        elif size:
            self.trunks.append(trunk)
            self.sizes.append(size)
        self.filled = before + size
        return left

    def has_room(self, branches: Sequence[RowBranch]) -> bool:
        """Return whether a further trunk with some of these branches may fit."""
        if self.room < branches[-1].length:
            return False
        return self.filled + min([b.fork for b in branches]) <= self.shape.trunk_size

    def fits(self, shape: RowShape) -> bool:
        """Return whether a row of ``shape`` holds this one."""
        lanes = -(-self.tokens // shape.capacity) if self.crosses else sum(end > 0 for end in self.ends)
        alike = shape.capacity == self.shape.capacity
        return alike and self.filled <= shape.trunk_size and lanes <= shape.lanes


Plan = list[tuple[list[Row], RowShape]]  # micro-batches: their rows with content, and their shape
Family = tuple[int, Sequence[RowBranch]]  # a trunk with branches, the longest first


def families_of(forks: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]]) -> list[Family]:
    """Trunks with their branches in the order in which rows take them: those with the most tokens first.

    Args:
      forks: ``forks[i][b]``, positions of trunk i that its branch b sees.
      lengths: ``lengths[i][b]``, tokens of branch b of trunk i.
    """
    families = [
        (trunk, sorted(map(RowBranch, range(len(seen)), seen, tokens), key=lambda branch: -branch.length))
        for trunk, (seen, tokens) in enumerate(zip(forks, lengths, strict=True))
    ]
    return sorted(families, key=lambda family: (-sum(lengths[family[0]]), -max(forks[family[0]]), family[0]))


def plan_rows(
    forks: Sequence[Sequence[int]],
    lengths: Sequence[Sequence[int]],
    shapes: Sequence[RowShape],
    *,
    shards: int = 1,
    key_cost: float = 0.0,
) -> Plan:
    """Plan micro-batches of the declared ``shapes``.

    Branches that no declared row holds get rows of one more shape: a lane as long as the longest of them.

    Args:
      forks, lengths: see `families_of`.
      shapes: declared before the run.
      shards: the number of rows of that shape.
      key_cost: work to attend to a position, as a part of a position's other work
        (`fr3e_jax.policy.architecture.Architecture.key_cost`).
    """
    families = families_of(forks, lengths)
    branches = [branch for _, branches in families for branch in branches]
    if left := [b for b in branches if not any(shape.holds(b.fork, b.length) for shape in shapes)]:
        size, capacity = max(branch.fork for branch in left), max(branch.length for branch in left)
        shapes = [*shapes, RowShape(shards, size_bucket(size, LEAST_SIZE), 1, size_bucket(capacity, LEAST_SIZE))]
    counts, call = row_counts(shapes), CALL * max(shape.positions for shape in shapes)
    plans = [
        micro_batches(fill_rows(families, rows), counts) for rows in selections(counts, largest_branches(families))
    ]
    return min(plans, key=lambda plan: sum(shape.work(key_cost) + call for _, shape in plan))


def row_counts(shapes: Sequence[RowShape]) -> dict[RowShape, list[int]]:
    """The declared rows, and in rising order how many of each a micro-batch may have."""
    return {row: sorted(s.rows for s in shapes if s.row == row) for row in sorted({shape.row for shape in shapes})}


def largest_branches(families: Sequence[Family]) -> list[RowBranch]:
    """The branches such that rows with room for these have room for all."""
    branches: list[RowBranch] = []
    for branch in sorted((b for _, branches in families for b in branches), key=lambda b: (-b.fork, -b.length)):
        if not branches or branch.length > branches[-1].length:
            branches.append(branch)
    return branches


def selections(rows: Sequence[RowShape], branches: Sequence[RowBranch]) -> Iterator[tuple[RowShape, ...]]:
    """Selections of ``rows`` that hold each of the branches."""
    for count in range(1, len(rows) + 1):
        for selection in combinations(rows, count):
            if all(any(row.holds(branch.fork, branch.length) for row in selection) for branch in branches):
                yield selection


def fill_rows(families: Sequence[Family], selection: Sequence[RowShape]) -> dict[RowShape, list[Row]]:
    """Rows with all branches, by the smallest row of ``selection`` that holds them.

    The largest rows take the branches that no smaller one holds. Others fill what is left in these, and then smaller
    rows. A trunk joins a row that has room for all of its branches, or begins new rows.
    """
    kinds = sorted({(row.trunk_size, row.capacity): row for row in sorted(selection)}.values(), reverse=True)
    limits = [(kind.trunk_size, kind.longest_branch) for kind in kinds]
    opened: list[list[Row]] = [[] for _ in kinds]
    for trunk, left in families:
        last = {
            b.index: max([n for n, (fork, length) in enumerate(limits) if b.fork <= fork and b.length <= length])
            for b in left
        }
        for n, (kind, rows) in enumerate(zip(kinds, opened, strict=True)):
            rest = [b for b in left if last[b.index] == n]
            if not rest:
                continue
            for row in rows[-_OPEN_ROWS:]:
                if rest and row.has_room(rest):
                    rest = row.add(trunk, rest)
            while rest:
                row = Row(kind)
                rows.append(row)
                rest = row.add(trunk, rest)
            left = row.add(trunk, [b for b in left if last[b.index] > n])
    by_size = sorted(selection, key=lambda row: (row.positions, row))
    filled: dict[RowShape, list[Row]] = {}
    for row in (row for rows in opened for row in rows):
        filled.setdefault(next(shape for shape in by_size if row.fits(shape)), []).append(row)
    return filled


def micro_batches(filled: Mapping[RowShape, list[Row]], counts: Mapping[RowShape, Sequence[int]]) -> Plan:
    """Rows cut into micro-batches; ``counts``: see `row_counts`."""
    plan: Plan = []
    for shape, rows in sorted(filled.items(), reverse=True):
        for count in cut(len(rows), counts[shape]):
            plan.append((rows[:count], shape._replace(rows=count)))
            rows = rows[count:]
    return plan


def cut(rows: int, counts: Sequence[int]) -> Iterator[int]:
    """Numbers of rows for micro-batches that hold ``rows`` rows: the largest counts that are full, then the least."""
    while rows > 0:
        count = max((n for n in counts if n <= rows), default=counts[0])
        yield count
        rows -= count
