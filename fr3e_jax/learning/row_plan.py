"""Which trunks and branches share a row, and which rows a micro-batch: arithmetic on lengths alone.

Sizes come from short lists, so that few programs are compiled; see `fr3e_jax.policy.rows` for the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fr3e_jax.programs.size_buckets import power_of_two, size_bucket

WINDOW = 3  # lanes that a token sees where branches lie end to end (docs/developers/performance_notebook.md)
_LONG_BRANCH = 2048  # longer ones do not cross lanes: what more there is to score would cost more than gaps do
_LEAST_TRUNK = 16
_LEAST_LANE = 16
_SHARED_ROW = 256  # shorter trunks share a row: every lane's token scores all trunk positions of its row
_WORTH_SHARING = 0.95  # of the positions, or every trunk keeps a row of its own


class Branch(NamedTuple):
    """A branch of a trunk: its number there, the trunk positions it sees, and its tokens."""

    number: int
    fork: int
    length: int


Branches = list[Branch]  # of a trunk, the longest first, equals by their numbers


@dataclass
class Row:
    """Trunks of a row, and the (trunk, branch) pairs in its lanes, each with the position where it begins.

    Branches lie end to end over all lanes (``crossing``), or each in the first lane with room for it. Of a trunk the
    row holds what its branches here see.
    """

    capacity: int
    crossing: bool
    trunks: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # positions of each trunk
    branches: list[tuple[int, int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # where each lane is filled to; crossing: where all are

    @property
    def filled(self) -> int:
        """Trunk positions."""
        return sum(self.sizes)

    @property
    def lanes(self) -> int:
        return -(-self.ends[0] // self.capacity) if self.crossing else len(self.ends)

    def add(self, index: int, branches: Branches, lanes: int = 1 << 30) -> Branches:
        """Place a trunk and its branches, which come longest first; returns those that ``lanes`` lanes cannot hold.

        An empty row takes the first branch whatever its length.
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
    """Of a micro-batch: rows, trunk positions of each, lanes of each, positions of a lane, lanes that a token sees."""

    rows: int
    trunk_size: int
    lanes: int
    capacity: int
    window: int = 1

    @property
    def positions(self) -> int:
        return self.rows * (self.trunk_size + self.lanes * self.capacity)


Plan = list[tuple[list[Row], RowShape]]  # micro-batches: their rows with content, and their shape


def plan_rows(
    forks: Sequence[Sequence[int]],
    lengths: Sequence[Sequence[int]],
    *,
    tokens: int,
    shards: int,
    fixed: tuple[int, int] | None,
    halves: bool = True,
) -> Plan:
    """Micro-batches of about ``tokens`` positions; see `fr3e_jax.learning.packing.pack`.

    Args:
      forks: ``forks[i][b]``, positions of trunk i that its branch b sees.
      lengths: ``lengths[i][b]``, tokens of branch b of trunk i.
      tokens: positions of a micro-batch, padding counted.
      shards: the number of rows is a multiple of it.
      fixed: positions of a trunk and of a lane, one trunk a row; None: chosen to leave little empty.
      halves: a trunk in several rows may have rows of half of the trunk positions, for the branches that see no more.
    """
    families = [
        sorted(map(Branch, range(len(row)), seen, row), key=lambda branch: -branch.length)
        for seen, row in zip(forks, lengths, strict=True)
    ]
    sizes, longest, most = [max(row) for row in forks], max(map(max, lengths)), max(tokens // shards, 1)
    # Branches cross lanes unless they are long, or a row has no room for two.
    window = WINDOW if not fixed and longest <= min(_LONG_BRANCH, (most - max(sizes)) // 2) else 1
    if fixed:
        trunk_size, capacity = fixed
    else:
        trunk_size = _trunk_bucket(max(sizes), min(max(map(sum, lengths)), most))
        capacity = size_bucket(longest if window == 1 else -(-(longest - 1) // (window - 1)), _LEAST_LANE)
    empty = partial(Row, capacity, window > 1)
    cut = partial(_cut, capacity=capacity, window=window, tokens=tokens, shards=shards, full=bool(fixed))
    alone = _TrunkSizes(trunk_size, size_bucket(-(-trunk_size // 2)) if halves and not fixed else trunk_size)
    rows = _one_trunk_a_row(families, empty, alone, lambda size: max((most - size) // capacity, 1))
    plan = cut(rows, alone)
    if fixed:
        return plan
    shared = _shared_rows(families, sizes, empty, most, shards) or rows
    held = max(row.lanes for row in shared) * capacity
    filled = _trunk_bucket(max(row.filled for row in shared), held)
    fewer = cut(shared, _TrunkSizes(filled, filled))
    padded = lambda plan: sum(shape.positions for _, shape in plan)
    return fewer if padded(fewer) < _WORTH_SHARING * padded(plan) else plan


class _TrunkSizes(NamedTuple):
    """Trunk positions of rows: two sizes, because each is a compilation more for every number of lanes."""

    whole: int
    half: int  # about; equal to ``whole`` where there is only one

    def of(self, filled: int) -> int:
        return self.half if filled <= self.half else self.whole


def _trunk_bucket(size: int, lanes: int) -> int:
    """A power of two where trunks may share a row, since the lanes make most of it; else in eighths of the next one.

    Finer than an eighth of the positions of all ``lanes`` is not worth a compilation; of long trunks at most 1024 are
    empty, so many are.
    """
    if size > _SHARED_ROW:
        return _whole(size, min(power_of_two(size) // 8, 1024))
    return power_of_two(size, 1 << max(lanes // 8, _LEAST_TRUNK).bit_length() - 1)


def _count_bucket(count: int) -> int:
    """Of rows and lanes: the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    return count if count <= 3 else size_bucket(count)


def _lanes_bucket(lanes: int, capacity: int, most: int) -> int:
    """As `_count_bucket`, or the next 512 positions (of as many lanes as are a power of two) where that is nearer.

    So many are worth a compilation. Never more than ``most``, what fits into a row, where that is enough: full rows are
    worth a shape of their own.
    """
    step = 1 << max(512 // capacity, 1).bit_length() - 1
    bucket = min(_count_bucket(lanes), _whole(lanes, step))
    return min(bucket, most) if lanes <= most else bucket


def _whole(size: int, step: int) -> int:
    return -(-size // step) * step


def _one_trunk_a_row(
    families: list[Branches], empty: Callable[[], Row], sizes: _TrunkSizes, lanes: Callable[[int], int]
) -> list[Row]:
    """A row for each trunk, or as many as it takes to have at most ``lanes(size)`` lanes beside ``size`` positions.

    Branches that see half of their trunk have rows of that size as long as they fill one.
    """
    rows = []
    for index, left in enumerate(families):
        while left:
            near = [branch for branch in left if branch.fork <= sizes.half]
            row = empty()
            over = row.add(index, near, lanes(sizes.half)) if near else []
            if not over and len(near) < len(left):
                row = empty()
                row.add(index, left, lanes(sizes.whole))
            placed = {number for _, number, _ in row.branches}
            left = [branch for branch in left if branch.number not in placed]
            rows.append(row)
    return rows


def _shared_rows(
    families: list[Branches], sizes: Sequence[int], empty: Callable[[], Row], most: int, shards: int
) -> list[Row] | None:
    """Fewer rows than trunks, a multiple of ``shards``, of at most ``most`` positions; None where that cannot be.

    The trunk with the most branch positions goes first, each to the row that holds the fewest so far.
    """
    room = max(_SHARED_ROW, max(sizes))
    held = [sum(branch.length for branch in branches) for branches in families]
    order = sorted(range(len(sizes)), key=lambda i: (-held[i], -sizes[i], i))
    least = max(-(-sum(sizes) // room), -(-(sum(sizes) + sum(held)) // most))
    for count in range(-(-least // shards) * shards, len(sizes), shards):
        rows, load = [empty() for _ in range(count)], [0] * count
        for index in order:
            best = min(range(count), key=lambda n: (load[n], n))
            rows[best].add(index, families[index])
            load[best] += sizes[index] + held[index]
        if all(row.filled <= room and row.filled + row.lanes * row.capacity <= most for row in rows):
            return rows
    return None


def _cut(
    rows: list[Row], sizes: _TrunkSizes, *, capacity: int, window: int, tokens: int, shards: int, full: bool
) -> Plan:
    """Micro-batches of like rows.

    With ``full`` every micro-batch has as many rows as ``tokens`` allow; else only as many as are needed, rounded up.
    """
    rows, cut = sorted(rows, key=lambda row: (row.lanes, row.filled, row.trunks)), []
    while rows:
        size, shape = 0, None
        for end in range(shards, len(rows) + shards, shards):
            trunk_size = sizes.of(max(row.filled for row in rows[:end]))
            fit = (tokens // shards - trunk_size) // capacity
            lanes = _lanes_bucket(max(row.lanes for row in rows[:end]), capacity, fit)
            wanted = RowShape(end, trunk_size, lanes, capacity, window)
            if size and wanted.positions > tokens:
                break
            size, shape = min(end, len(rows)), wanted
        most = max(tokens // (shape.positions // shape.rows) // shards, 1) if full else 0
        count = shards * (most or _count_bucket(-(-size // shards)))
        cut.append((rows[:size], shape._replace(rows=count)))
        rows = rows[size:]
    return cut
