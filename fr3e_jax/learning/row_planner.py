"""The planner of rows: branches and their trunks into rows, and rows into micro-batches of declared shapes alone.

A row holds whole trunks up to the largest fork of its branches. Short branches lie end to end over all
lanes, long ones in one lane each. `plan_rows` tries every selection of the declared rows and takes the plan with
the least work. `fr3e_jax.learning.micro_batch_shapes` chooses the shapes before the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
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
        for number, branch in enumerate(branches):
            if branches[-1].length > self.room:  # not even the shortest fits
                left += branches[number:]
                break
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
        alike = (shape.capacity, shape.window) == (self.shape.capacity, self.shape.window)
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
    batch = PlannedBatch(forks, lengths)
    branches = [branch for _, branches in batch.families for branch in branches]
    if left := [b for b in branches if not any(shape.holds(b.fork, b.length) for shape in shapes)]:
        size, capacity = max(branch.fork for branch in left), max(branch.length for branch in left)
        shapes = [*shapes, RowShape(shards, size_bucket(size, LEAST_SIZE), 1, size_bucket(capacity, LEAST_SIZE))]
    return batch.cheapest(shapes, key_cost, CALL * max(shape.positions for shape in shapes))[1]


class PlannedBatch:
    """A mini-batch and its plans in any shapes; rows are filled once for each selection of them."""

    def __init__(self, forks: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]]):
        self.families = families_of(forks, lengths)
        self._largest = largest_branches(self.families)
        self._filled = cache(partial(fill_rows, self.families))

    def cheapest(self, shapes: Sequence[RowShape], key_cost: float, call: float) -> tuple[float, Plan]:
        """The work of the plan in ``shapes`` with the least, where each micro-batch costs ``call``, and that plan."""
        by_row = {row: sorted(shape for shape in shapes if shape.row == row) for row in sorted({s.row for s in shapes})}
        works = {shape: shape.work(key_cost) + call for shape in shapes}
        plans = [micro_batches(self._filled(rows), by_row) for rows in selections(by_row, self._largest)]
        return min(((sum(works[shape] for _, shape in plan), plan) for plan in plans), key=lambda pair: pair[0])


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
    largest = {(row.trunk_size, row.capacity, row.window): row for row in sorted(selection)}
    kinds = sorted(largest.values(), reverse=True)

    @cache
    def smallest(fork: int, length: int) -> int:
        return max(n for n, kind in enumerate(kinds) if kind.holds(fork, length))

    opened: list[list[Row]] = [[] for _ in kinds]
    for trunk, left in families:
        last = {b.index: smallest(b.fork, b.length) for b in left}
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


def micro_batches(filled: Mapping[RowShape, list[Row]], shapes: Mapping[RowShape, Sequence[RowShape]]) -> Plan:
    """Rows cut into micro-batches: the largest that are full, then the smallest.

    ``shapes``: in rising order those that consist of each row.
    """
    plan: Plan = []
    for row, rows in sorted(filled.items(), reverse=True):
        start = 0
        while start < len(rows):
            full = [shape for shape in shapes[row] if shape.rows <= len(rows) - start]
            shape = full[-1] if full else shapes[row][0]
            plan.append((rows[start : start + shape.rows], shape))
            start += shape.rows
    return plan
