"""Rows of long branches in a few shapes that were chosen before the run.

A branch that is too long to cross lanes lies in one lane, perhaps behind others of its trunk. A row has one trunk. Its
*geometry* is the size of its trunk part and its lanes; all lanes of a run have one capacity. A micro-batch of a geometry
always has as many rows as fit, so a geometry is one shape: one compilation of each program that reads rows. A mini-batch
uses the geometries of the menu, whatever they cost, and adds one only for a row that none of them holds.

`chosen_geometries` picks a given number of geometries for expected batches: first one that holds every row, then those
that save most of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fr3e_jax.learning.row_menu import Geometry, RowMenu
from fr3e_jax.learning.row_shapes import Branches, Plan, Row, RowShape, whole_steps
from fr3e_jax.programs.size_buckets import power_of_two, size_bucket

_STEP = 1024  # trunk sizes are multiples of an eighth of the next power of two, and at most of this
_LEAST_LANE = 16
_MOST_LANES = 8  # numbers of lanes that are tried


class Budget(NamedTuple):
    """What all micro-batches share."""

    tokens: int  # positions of a micro-batch, padding counted
    shards: int
    key_cost: float  # see `fr3e_jax.learning.row_plan.plan_rows`

    def shape(self, geometry: Geometry) -> RowShape:
        """The micro-batch of a geometry: as many rows of each shard as fit, at least one."""
        rows = max(self.tokens // self.shards // geometry.positions, 1)
        return RowShape(self.shards * rows, *geometry)

    def cost(self, shape: RowShape) -> float:
        """Work of a micro-batch, in positions: half of the keys of its own part, and all of the trunk for lanes."""
        rows, trunk, lanes, capacity, _ = shape
        of_trunk = trunk * (1 + self.key_cost * trunk / 2)
        return rows * (of_trunk + lanes * capacity * (1 + self.key_cost * (trunk + capacity / 2)))


def plan_long_rows(families: Sequence[Branches], budget: Budget, capacity: int, menu: RowMenu) -> Plan:
    """Micro-batches of the menu's shapes; a shape that had to be added joins ``menu``.

    Args:
      families: the branches of each trunk, the longest first.
      budget: of a micro-batch.
      capacity: positions of a lane; the longest branch fits.
      menu: of the run.
    """
    plan = _plan(families, budget, capacity, [g for g in menu.geometries() if g.capacity == capacity])
    menu.add(plan)
    return plan


def _plan(families: Sequence[Branches], budget: Budget, capacity: int, known: list[Geometry]) -> Plan:
    geometries = sorted(known, key=lambda g: (g.positions, g))
    rows: dict[Geometry, list[Row]] = {}
    for index, left in enumerate(families):
        while left:
            row, geometry, left = _next_row(index, left, budget, capacity, geometries)
            if geometry not in geometries:
                geometries = sorted([*geometries, geometry], key=lambda g: (g.positions, g))
            rows.setdefault(geometry, []).append(row)
    return _micro_batches(rows, budget, geometries)


def _next_row(
    index: int, branches: Branches, budget: Budget, capacity: int, geometries: list[Geometry]
) -> tuple[Row, Geometry, Branches]:
    """A row of a trunk's branches, the geometry that holds it at least cost, and the branches that are left.

    Of the geometries, that counts whose row costs least for each token that it takes.
    """
    best = None
    for geometry in geometries:
        near = [branch for branch in branches if branch.fork <= geometry.trunk_size]
        if not near:
            continue
        row = Row(capacity, crossing=False)
        over = {branch.number for branch in row.add(index, near, geometry.lanes)}
        taken = {branch.number: branch.length for branch in near if branch.number not in over}
        cost = budget.cost(RowShape(1, *geometry)) / sum(taken.values())
        if best is None or cost < best[0]:
            best = cost, row, geometry, taken
    if best is None:
        row, size = Row(capacity, crossing=False), _trunk_size(max(branch.fork for branch in branches))
        over = {branch.number for branch in row.add(index, branches, _lanes(size, capacity, budget)[-1])}
        taken = {branch.number: branch.length for branch in branches if branch.number not in over}
        best = 0.0, row, Geometry(size, _lanes(size, capacity, budget)[-1], capacity), taken
    _, row, geometry, taken = best
    return row, geometry, [branch for branch in branches if branch.number not in taken]


def _micro_batches(rows: dict[Geometry, list[Row]], budget: Budget, geometries: list[Geometry]) -> Plan:
    """Full micro-batches of each geometry; rows that do not fill one go to a larger geometry that has room, if any."""
    plan: Plan = []
    for number, geometry in enumerate(geometries):
        own, shape = rows.pop(geometry, []), budget.shape(geometry)
        whole = len(own) // shape.rows * shape.rows
        plan += [(own[n : n + shape.rows], shape) for n in range(0, whole, shape.rows)]
        rest = own[whole:]
        for other in geometries[number + 1 :] if rest else ():
            room = -len(rows.get(other, [])) % budget.shape(other).rows
            if other.trunk_size >= geometry.trunk_size and other.lanes >= geometry.lanes and len(rest) <= room:
                rows[other] += rest
                rest = []
                break
        plan += [(rest, shape)] * bool(rest)
    return plan


def lane_capacity(longest: int) -> int:
    """Positions of a lane that holds a branch of ``longest`` tokens."""
    return size_bucket(longest, _LEAST_LANE)


def _trunk_size(size: int) -> int:
    return whole_steps(size, min(max(power_of_two(size) // 8, _LEAST_LANE), _STEP))


def _lanes(trunk_size: int, capacity: int, budget: Budget) -> list[int]:
    """Numbers of lanes beside a trunk: as many as a micro-batch of one row a shard has room for, and halves of that."""
    most = min(max((budget.tokens // budget.shards - trunk_size) // capacity, 1), _MOST_LANES)
    return sorted({max(most >> n, 1) for n in range(4)})


def chosen_geometries(
    batches: Sequence[Sequence[Branches]], budget: Budget, longest: int, longest_trunk: int, most: int
) -> list[Geometry]:
    """At most ``most`` geometries for batches like these, the largest first.

    Args:
      batches: of each mini-batch, the branches of its trunks, the longest first.
      budget: of a micro-batch.
      longest: tokens of the longest branch of the run.
      longest_trunk: positions of its longest trunk.
      most: the number of geometries, at least 1.
    """
    capacity = lane_capacity(longest)
    largest = _trunk_size(longest_trunk)
    sizes = sorted({_trunk_size(-(-largest * part // 8)) for part in range(1, 9)})
    candidates = [Geometry(size, lanes, capacity) for size in sizes for lanes in _lanes(size, capacity, budget)]

    def cost(chosen: list[Geometry]) -> float:
        plans = (_plan(batch, budget, capacity, chosen) for batch in batches)
        return sum(budget.cost(shape) for plan in plans for _, shape in plan)

    chosen = min(([g] for g in candidates if g.trunk_size == sizes[-1]), key=cost)
    least = cost(chosen)
    while len(chosen) < most:
        found = min(([*chosen, g] for g in candidates if g not in chosen), key=cost, default=None)
        if found is None or cost(found) >= least:
            break
        chosen, least = found, cost(found)
    return sorted(chosen, key=lambda g: (-g.positions, g))
