"""Which trunks and branches share a row, and which rows a micro-batch: arithmetic on lengths alone.

Sizes come from short lists, so that few programs are compiled; see `fr3e_jax.policy.rows` for the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fr3e_jax.programs.decoder import power_of_two, size_bucket

_LEAST_TRUNK = 16
_SHARED_ROW = 256  # shorter trunks share a row: every lane's token scores all trunk positions of its row
_WORTH_SHARING = 0.95  # of the positions, or every trunk keeps a row of its own
_SHARED_LANE = 64  # shorter branches share a lane: three of 20 tokens fill 60 of 64 positions, one 20 of 32


@dataclass
class Row:
    """Trunks of a row, and for each lane the (trunk, branch) pairs in it."""

    capacity: int
    trunks: list[int] = field(default_factory=list)
    filled: int = 0  # trunk positions
    lanes: list[list[tuple[int, int]]] = field(default_factory=list)
    room: list[int] = field(default_factory=list)

    def add(self, index: int, size: int, branches: Lengths, most_lanes: int = 1 << 30) -> Lengths:
        """Place a trunk and its branches, which come longest first: first fit. Returns those without room."""
        self.trunks.append(index)
        self.filled += size
        left_over = []
        for branch, length in branches:
            lane = next((n for n, left in enumerate(self.room) if left >= length), len(self.lanes))
            if lane == most_lanes:
                left_over.append((branch, length))
                continue
            if lane == len(self.lanes):
                self.lanes.append([])
                self.room.append(self.capacity)
            self.lanes[lane].append((index, branch))
            self.room[lane] -= length
        return left_over


Lengths = list[tuple[int, int]]  # (branch, length) of a trunk, the longest first, equals by their numbers


class RowShape(NamedTuple):
    """Of a micro-batch: rows, trunk positions of each, lanes of each, positions of a lane."""

    rows: int
    trunk_size: int
    lanes: int
    capacity: int

    @property
    def positions(self) -> int:
        return self.rows * (self.trunk_size + self.lanes * self.capacity)


Plan = list[tuple[list[Row], RowShape]]  # micro-batches: their rows with content, and their shape


def plan_rows(
    sizes: Sequence[int], lengths: Sequence[Sequence[int]], *, tokens: int, shards: int, fixed: tuple[int, int] | None
) -> Plan:
    """Micro-batches of about ``tokens`` positions; see `fr3e_jax.loop.packing.pack`.

    Args:
      sizes: positions of each trunk.
      lengths: ``lengths[i][b]``, tokens of branch b of trunk i.
      tokens: positions of a micro-batch, padding counted.
      shards: the number of rows is a multiple of it.
      fixed: positions of a trunk and of a lane, one trunk a row; None: chosen to leave little empty.
    """
    longest_first = [sorted(enumerate(row), key=lambda item: -item[1]) for row in lengths]
    capacity = fixed[1] if fixed else size_bucket(max(map(max, lengths)), _SHARED_LANE)
    most = max(tokens // shards, 1)
    rows = _one_trunk_a_row(sizes, longest_first, capacity, most)
    plan = _cut(rows, fixed and fixed[0], capacity, tokens, shards)
    if fixed:
        return plan
    shared = _shared_rows(sizes, longest_first, capacity, most, shards) or rows
    fewer = _cut(shared, None, capacity, tokens, shards)
    padded = lambda plan: sum(shape.positions for _, shape in plan)
    return fewer if padded(fewer) < _WORTH_SHARING * padded(plan) else plan


def _trunk_bucket(size: int, least: int) -> int:
    """A power of two where trunks may share a row, since the lanes make most of it; else in eighths of the next one.

    Of long trunks at most 1024 positions are empty: so many are worth a compilation.
    """
    return power_of_two(size, least) if size <= _SHARED_ROW else _whole(size, min(power_of_two(size) // 8, 1024))


def _count_bucket(count: int) -> int:
    """Of rows and lanes: the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    return count if count <= 3 else size_bucket(count)


def _lanes_bucket(lanes: int, capacity: int) -> int:
    """As `_count_bucket`, or the next 1024 positions where that is nearer: so many are worth a compilation."""
    return min(_count_bucket(lanes), _whole(lanes, max(1024 // capacity, 1)))


def _whole(size: int, step: int) -> int:
    return -(-size // step) * step


def _one_trunk_a_row(sizes: Sequence[int], lengths: list[Lengths], capacity: int, most: int) -> list[Row]:
    """A row for each trunk, or as many like ones as it takes to have at most ``most`` positions in each."""
    rows = []
    for index, (size, branches) in enumerate(zip(sizes, lengths, strict=True)):
        whole = Row(capacity)
        whole.add(index, size, branches)
        parts = -(-len(whole.lanes) // max((most - size) // capacity, 1))
        if parts == 1:
            rows.append(whole)
            continue
        while branches:
            row = Row(capacity)
            branches = row.add(index, size, branches, -(-len(whole.lanes) // parts))
            rows.append(row)
    return rows


def _shared_rows(
    sizes: Sequence[int], lengths: list[Lengths], capacity: int, most: int, shards: int
) -> list[Row] | None:
    """Fewer rows than trunks, a multiple of ``shards``, of at most ``most`` positions; None where that cannot be.

    The trunk with the most branch positions goes first, each to the row that holds the fewest so far.
    """
    room = max(_SHARED_ROW, max(sizes))
    held = [sum(length for _, length in branches) for branches in lengths]
    order = sorted(range(len(sizes)), key=lambda i: (-held[i], -sizes[i], i))
    least = max(-(-sum(sizes) // room), -(-(sum(sizes) + sum(held)) // most))
    for count in range(-(-least // shards) * shards, len(sizes), shards):
        rows, load = [Row(capacity) for _ in range(count)], [0] * count
        for index in order:
            best = min(range(count), key=lambda n: (load[n], n))
            rows[best].add(index, sizes[index], lengths[index])
            load[best] += sizes[index] + held[index]
        if all(row.filled <= room and row.filled + len(row.lanes) * capacity <= most for row in rows):
            return rows
    return None


def _cut(rows: list[Row], trunk_size: int | None, capacity: int, tokens: int, shards: int) -> Plan:
    """Micro-batches of like rows.

    With a given ``trunk_size`` every micro-batch has as many rows as ``tokens`` allow; else only as many as are needed,
    rounded up.
    """
    fixed = trunk_size is not None
    rows = sorted(rows, key=lambda row: (len(row.lanes), row.filled, row.trunks))
    if trunk_size is None:
        # Finer than an eighth of the lanes is not worth a compilation.
        least = max(_lanes_bucket(len(rows[-1].lanes), capacity) * capacity // 8, _LEAST_TRUNK)
        trunk_size = _trunk_bucket(max(row.filled for row in rows), 1 << least.bit_length() - 1)
    cut = []
    while rows:
        size, lanes = 0, 0
        for end in range(shards, len(rows) + shards, shards):
            wanted = _lanes_bucket(len(rows[min(end, len(rows)) - 1].lanes), capacity)
            if size and end * (trunk_size + wanted * capacity) > tokens:
                break
            size, lanes = min(end, len(rows)), wanted
        full = max(tokens // (trunk_size + lanes * capacity) // shards, 1) if fixed else 0
        count = shards * (full or _count_bucket(-(-size // shards)))
        cut.append((rows[:size], RowShape(count, trunk_size, lanes, capacity)))
        rows = rows[size:]
    return cut
