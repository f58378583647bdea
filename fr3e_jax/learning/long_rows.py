"""Rows of long branches in a few shapes that were chosen before the run.

A branch that is too long to cross lanes lies in one lane, perhaps behind others of its trunk. A row has one trunk. Its
*geometry* is the size of its trunk part and its lanes; all lanes of a run have one capacity. A shape is a geometry with
a number of rows. Each is one compilation of every program that reads rows. A mini-batch uses the shapes of the menu,
whatever they cost, and adds one only for a row that none of them holds.

`chosen_shapes` picks a given number of shapes for expected batches: first one that holds every row, then those that
save most of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fr3e_jax.learning.row_menu import Geometry, RowMenu, geometry_of, in_parts
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

    def fits(self, shape: RowShape) -> bool:
        """Whether a shape is within the budget, or is the least that holds a long trunk and a branch."""
        return shape.positions <= self.tokens or (shape.rows == self.shards and shape.lanes == 1)

    def shapes(self, geometry: Geometry) -> list[RowShape]:
        """Micro-batches of a geometry: as many rows of each shard as fit, and a half and a quarter of that."""
        most = max(self.tokens // self.shards // geometry.positions, 1)
        return [RowShape(self.shards * rows, *geometry) for rows in sorted({-(-most // part) for part in (1, 2, 4)})]

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
    known = [shape for shape in menu.shapes if shape.capacity == capacity and budget.fits(shape)]
    plan = _plan(families, budget, capacity, known)
    menu.add(plan)
    return plan


def _plan(families: Sequence[Branches], budget: Budget, capacity: int, known: Sequence[RowShape]) -> Plan:
    counts: dict[Geometry, list[int]] = {}  # rows of each shard
    for shape in sorted(known, key=lambda s: (geometry_of(s).positions, s)):
        counts.setdefault(geometry_of(shape), []).append(-(-shape.rows // budget.shards))
    rows: dict[Geometry, list[Row]] = {}
    for index, left in enumerate(families):
        while left:
            row, geometry, left = _next_row(index, left, budget, capacity, counts)
            counts.setdefault(geometry, [1])
            rows.setdefault(geometry, []).append(row)
    return _micro_batches(rows, budget.shards, counts)


def _next_row(
    index: int, branches: Branches, budget: Budget, capacity: int, geometries: Sequence[Geometry]
) -> tuple[Row, Geometry, Branches]:
    """A row of a trunk's branches, the geometry that holds it at least cost, and the branches that are left.

    Of the geometries, that counts whose row costs least for each token that it takes.
    """
    best = None
    for geometry in geometries:
        near = [branch for branch in branches if branch.fork <= geometry.trunk_size]
        if not near:
            continue
        row, taken = _row(index, near, geometry)
        cost = budget.cost(RowShape(1, *geometry)) / sum(branch.length for branch in near if branch.number in taken)
        if best is None or cost < best[0]:
            best = cost, row, geometry, taken
    if best is None:
        size = _trunk_size(max(branch.fork for branch in branches))
        geometry = Geometry(size, _lanes(size, capacity, budget)[-1], capacity)
        row, taken = _row(index, branches, geometry)
        best = 0.0, row, geometry, taken
    _, row, geometry, taken = best
    return row, geometry, [branch for branch in branches if branch.number not in taken]


def _row(index: int, branches: Branches, geometry: Geometry) -> tuple[Row, set[int]]:
    """A row with as many of the branches as its lanes hold, and their numbers."""
    row = Row(geometry.capacity, crossing=False)
    over = {branch.number for branch in row.add(index, branches, geometry.lanes)}
    return row, {branch.number for branch in branches} - over


def _micro_batches(rows: dict[Geometry, list[Row]], shards: int, counts: dict[Geometry, list[int]]) -> Plan:
    """Micro-batches of each geometry; rows that do not fill the last one go to a larger geometry with room, if any."""
    plan: Plan = []
    order = sorted(counts, key=lambda g: (g.positions, g))
    for number, geometry in enumerate(order):
        own = rows.pop(geometry, [])
        rest = own[len(own) - len(own) % (shards * min(counts[geometry])) :]
        for other in order[number + 1 :] if rest else ():
            room = -len(rows.get(other, [])) % (shards * min(counts[other]))
            if other.trunk_size >= geometry.trunk_size and other.lanes >= geometry.lanes and len(rest) <= room:
                rows[other] += rest
                own = own[: len(own) - len(rest)]
                break
        for count in in_parts(-(-len(own) // shards), sorted(counts[geometry])):
            plan.append((own[: count * shards], RowShape(count * shards, *geometry)))
            own = own[count * shards :]
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


def chosen_shapes(
    batches: Sequence[Sequence[Branches]], budget: Budget, longest: int, longest_trunk: int, most: int
) -> list[RowShape]:
    """At most ``most`` shapes for batches like these, the largest first.

    Args:
      batches: of each mini-batch, the branches of its trunks, the longest first.
      budget: of a micro-batch.
      longest: tokens of the longest branch of the run.
      longest_trunk: positions of its longest trunk.
      most: the number of shapes, at least 1.
    """
    capacity = lane_capacity(longest)
    largest = _trunk_size(longest_trunk)
    sizes = sorted({_trunk_size(-(-largest * part // 8)) for part in range(1, 9)})
    geometries = [Geometry(size, lanes, capacity) for size in sizes for lanes in _lanes(size, capacity, budget)]
    candidates = [shape for geometry in geometries for shape in budget.shapes(geometry)]

    def cost(chosen: list[RowShape]) -> float:
        plans = (_plan(batch, budget, capacity, chosen) for batch in batches)
        return sum(budget.cost(shape) for plan in plans for _, shape in plan)

    chosen = min(([one] for one in candidates if one.trunk_size == sizes[-1]), key=cost)
    least = cost(chosen)
    while len(chosen) < most:
        found = min(([*chosen, one] for one in candidates if one not in chosen), key=cost, default=None)
        if found is None or cost(found) >= least:
            break
        chosen, least = found, cost(found)
    return sorted(chosen, key=lambda shape: (-geometry_of(shape).positions, shape))
