"""The plan of rows: trunks and branches that share a row, and rows that share a micro-batch, from lengths alone.

Sizes come from short lists, so that few programs are compiled. `fr3e_jax.policy.rows` describes the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from fr3e_jax.learning.long_rows import Budget, lane_capacity, plan_long_rows
from fr3e_jax.learning.row_menu import RowMenu, plan_crossing_rows
from fr3e_jax.learning.row_shapes import (
    SHARED_ROW,
    WINDOW,
    Branch,
    Branches,
    Plan,
    Row,
    RowShape,
    trunk_bucket,
    whole_steps,
)
from fr3e_jax.programs.size_buckets import size_bucket

_LONG_BRANCH = 2048  # longer branches do not cross lanes: the extra scores would cost more than the gaps
_LEAST_LANE = 16
_WORTH_SHARING = 0.95  # rows are shared only if that takes less than this part of the positions


def plan_rows(
    forks: Sequence[Sequence[int]],
    lengths: Sequence[Sequence[int]],
    *,
    tokens: int,
    shards: int,
    fixed: tuple[int, int] | None,
    halves: bool = True,
    longest: int = 0,
    key_cost: float = 0.0,
    position_cost: float = 0.0,
    menu: RowMenu | None = None,
) -> Plan:
    """Plan micro-batches of about ``tokens`` positions; see `fr3e_jax.learning.packing.pack`.

    Args:
      forks: ``forks[i][b]``, positions of trunk i that its branch b sees.
      lengths: ``lengths[i][b]``, tokens of branch b of trunk i.
      tokens: positions of a micro-batch, padding counted.
      shards: the number of rows is a multiple of it.
      fixed: positions of a trunk and of a lane, with one trunk in each row; None: chosen to leave little empty.
      halves: branches that see at most half of their trunk may have rows of half of the trunk positions.
      longest: tokens of the longest branch that a run may have, so that all of its batches get lanes of one size; 0, or
        fewer than a branch has, or more than `_LONG_BRANCH`: of these branches.
      key_cost: work to attend to a position, as a part of a position's other work
        (`fr3e_jax.policy.architecture.Architecture.key_cost`).
      position_cost: operations to train on a position, attention aside (`Architecture.position_cost`): shapes are worth
        more compilations where these are many. 0: as few shapes as possible.
      menu: the shapes that the run has used, where branches cross lanes; new ones are added. None: there are none.
    """
    families = [
        sorted(map(Branch, range(len(row)), seen, row), key=lambda branch: -branch.length)
        for seen, row in zip(forks, lengths, strict=True)
    ]
    sizes, most = [max(row) for row in forks], max(tokens // shards, 1)
    if longest <= _LONG_BRANCH or (menu is not None and menu.closed):
        longest = max(longest, max(map(max, lengths)))
    else:
        longest = max(map(max, lengths))
    # Branches cross lanes unless they are long, or a row has no room for two.
    if not fixed and longest <= min(_LONG_BRANCH, (most - max(sizes)) // 2):
        capacity = size_bucket(-(-(longest - 1) // (WINDOW - 1)), _LEAST_LANE)
        run = {
            "key_cost": key_cost,
            "position_cost": position_cost,
            "halves": halves,
            "menu": RowMenu() if menu is None else menu,
        }
        return plan_crossing_rows(families, tokens=tokens, shards=shards, capacity=capacity, **run)
    if menu is not None and menu.closed and not fixed:
        budget = Budget(tokens, shards, key_cost)
        return plan_long_rows(families, budget, lane_capacity(longest), menu)
    if fixed:
        trunk_size, capacity = fixed
    else:
        trunk_size = trunk_bucket(max(sizes), min(max(map(sum, lengths)), most))
        capacity = size_bucket(longest, _LEAST_LANE)
    empty = partial(Row, capacity, crossing=False)
    cut = partial(_cut, capacity=capacity, tokens=tokens, shards=shards, full=bool(fixed))
    alone = _TrunkSizes(trunk_size, size_bucket(-(-trunk_size // 2)) if halves and not fixed else trunk_size)
    rows = _one_trunk_a_row(families, empty, alone, lambda size: max((most - size) // capacity, 1))
    plan = cut(rows, alone)
    if fixed:
        return plan
    shared = _shared_rows(families, sizes, empty, most, shards) or rows
    held = max(row.lanes for row in shared) * capacity
    filled = trunk_bucket(max(row.filled for row in shared), held)
    fewer = cut(shared, _TrunkSizes(filled, filled))
    padded = lambda plan: sum(shape.positions for _, shape in plan)
    return fewer if padded(fewer) < _WORTH_SHARING * padded(plan) else plan


class _TrunkSizes(NamedTuple):
    """Trunk positions of rows. Two sizes at most: each costs one more compilation for every number of lanes."""

    whole: int
    half: int  # about half; equal to ``whole`` if there is only one size

    def of(self, filled: int) -> int:
        """The size that holds ``filled`` positions."""
        return self.half if filled <= self.half else self.whole


def _count_bucket(count: int) -> int:
    """A number of rows or lanes, rounded up to the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    return count if count <= 3 else size_bucket(count)


def _lanes_bucket(lanes: int, capacity: int, most: int) -> int:
    """A number of lanes, rounded up as by `_count_bucket` or to the next 512 positions, whichever is nearer.

    512 positions are worth a compilation; as a step they are a power of two of lanes. If a row has room for the lanes,
    the result does not exceed ``most``, the lanes of a full row: full rows are worth a shape of their own.
    """
    step = 1 << max(512 // capacity, 1).bit_length() - 1
    bucket = min(_count_bucket(lanes), whole_steps(lanes, step))
    return min(bucket, most) if lanes <= most else bucket


def _one_trunk_a_row(
    families: list[Branches], empty: Callable[[], Row], sizes: _TrunkSizes, lanes: Callable[[int], int]
) -> list[Row]:
    """Rows of one trunk each; a row of ``size`` trunk positions has at most ``lanes(size)`` lanes.

    A trunk takes as many rows as its branches need. Branches that see at most half of their trunk have rows of that
    half as long as they fill one.
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
    """Fewer rows than trunks, a multiple of ``shards``, of at most ``most`` positions; None if that is impossible.

    Trunks are placed in falling order of branch positions, each into the row that holds the fewest positions so far.
    """
    room = max(SHARED_ROW, max(sizes))
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


def _cut(rows: list[Row], sizes: _TrunkSizes, *, capacity: int, tokens: int, shards: int, full: bool) -> Plan:
    """Cut the rows into micro-batches of similar rows.

    With ``full`` every micro-batch has as many rows as ``tokens`` allow; else only as many as needed, rounded up.
    """
    rows, cut = sorted(rows, key=lambda row: (row.lanes, row.filled, row.trunks)), []
    while rows:
        size, shape = 0, None
        for end in range(shards, len(rows) + shards, shards):
            trunk_size = sizes.of(max(row.filled for row in rows[:end]))
            fit = (tokens // shards - trunk_size) // capacity
            lanes = _lanes_bucket(max(row.lanes for row in rows[:end]), capacity, fit)
            wanted = RowShape(end, trunk_size, lanes, capacity)
            if size and wanted.positions > tokens:
                break
            size, shape = min(end, len(rows)), wanted
        most = max(tokens // (shape.positions // shape.rows) // shards, 1) if full else 0
        count = shards * (most or _count_bucket(-(-size // shards)))
        cut.append((rows[:size], shape._replace(rows=count)))
        rows = rows[size:]
    return cut
