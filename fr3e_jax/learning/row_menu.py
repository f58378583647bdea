"""Rows whose branches cross lanes, of a few shapes: every shape costs a compilation of each program that reads rows.

The *geometry* of a row is its trunk positions and its lanes. Rows of one geometry are filled to the end, and a
micro-batch holds as many of them as fit. The rows that are left in the end go into micro-batches of 1, 4, 16, ... rows:
seven rows need two programs for good, four calls with 4, 1, 1 and 1. The shapes that a run has used are its *menu*. A
mini-batch takes a geometry that is not on it only if those on it cost 1.7 times as much. Rows with few branches may
have smaller geometries, where that saves more work than compiling them takes. So the menu follows the lengths of a run,
and stays short. It is part of a checkpoint: rows of other shapes differ in their last bits.

A *closed* menu was chosen before the run (`fr3e_jax.learning.row_forecast`). Mini-batches take its shapes at any cost,
and add one only for a branch that no row of the menu holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from fr3e_jax.learning.row_shapes import SHARED_ROW, WINDOW, Branch, Branches, Plan, Row, RowShape, trunk_bucket
from fr3e_jax.programs.size_buckets import size_bucket

_SLACK = 1.7  # a new geometry costs compilations: it must save two fifths
_LEAST_TRUNK = 16
_SPARE = 0.25  # rows that other mini-batches may need beyond this one: large rows do not suit few tokens
_EVEN_ROWS = 4  # up to so many rows, geometries are tried that a mini-batch fills evenly
_COUNTS = 4  # the last micro-batches have as many rows as its powers: few programs, three calls of each at most
_OPEN_ROWS = 32  # rows that a trunk may still join
_WORTH_ANOTHER = 0.97  # rows with few branches get a geometry of their own if that costs less than this part
_WORTH_OPERATIONS = 1e10  # and saves so many operations: over a run's mini-batches they take longer than compiling
_LONG_LANE = 128  # positions of a lane that it pays to spare
_FEW_LANES = 12  # rows of more lanes have few of them too many anyway
_MOST_SMALLER = 3  # geometries beside the largest
_TRIED = 6  # geometries, the most promising first, that are tried with smaller ones
_WORTH_HALVES = 0.95  # branches near their trunk's start get rows of their own if that costs less than this part


class Geometry(NamedTuple):
    """Trunk positions of a row, its lanes, and positions of a lane."""

    trunk_size: int
    lanes: int
    capacity: int

    @property
    def room(self) -> int:
        """Positions of all lanes."""
        return self.lanes * self.capacity

    @property
    def positions(self) -> int:
        """Positions of a row."""
        return self.trunk_size + self.room


@dataclass
class RowMenu:
    """The shapes that a run has used, in the order of their first use; ``closed``: chosen before the run."""

    shapes: list[RowShape] = field(default_factory=list)
    closed: bool = False

    def geometries(self) -> list[Geometry]:
        """The geometries of the shapes, each once."""
        return list(dict.fromkeys(geometry_of(shape) for shape in self.shapes))

    def rows_of(self, geometry: Geometry) -> list[int]:
        """The numbers of rows that micro-batches of this geometry have had."""
        return [shape.rows for shape in self.shapes if geometry_of(shape) == geometry]

    def add(self, plan: Plan) -> None:
        """Note the shapes of a plan that is carried out."""
        self.shapes += [shape for shape in dict.fromkeys(shape for _, shape in plan) if shape not in self.shapes]

    def to_json(self) -> list[list[int]]:
        """Content of a checkpoint."""
        return [list(shape) for shape in self.shapes]

    @classmethod
    def from_json(cls, content: list[list[int]], *, closed: bool = False) -> RowMenu:
        """The inverse of `to_json`."""
        return cls([RowShape(*sizes) for sizes in content], closed)


def geometry_of(shape: RowShape) -> Geometry:
    """The geometry of a shape's rows."""
    return Geometry(shape.trunk_size, shape.lanes, shape.capacity)


class _Family(NamedTuple):
    """Branches of a trunk, not none, that rows are to hold."""

    trunk: int
    branches: Branches
    fork: int  # the largest: tokens of the trunk that a row needs
    tokens: int  # of the branches


class _Part:
    """The families that a plan places, and their sizes, which are read for every geometry that is tried."""

    def __init__(self, families: Iterable[tuple[int, Branches]]) -> None:
        self.families = [
            _Family(trunk, branches, max(b.fork for b in branches), sum(b.length for b in branches))
            for trunk, branches in families
            if branches
        ]
        self.longest = max((b.length for one in self.families for b in one.branches), default=0)
        self.largest_fork = max((one.fork for one in self.families), default=0)
        self.trunk_tokens = sum(one.fork for one in self.families)
        self.tokens = sum(one.tokens for one in self.families)

    @cached_property
    def most_tokens_first(self) -> list[_Family]:
        """The families in the order in which they are placed."""
        return sorted(self.families, key=lambda one: (-one.tokens, -one.fork, one.trunk))

    def where(self, wanted: Callable[[Branch], bool]) -> _Part:
        """The branches that are wanted."""
        return _Part((one.trunk, [branch for branch in one.branches if wanted(branch)]) for one in self.families)


class _Choice(NamedTuple):
    """Rows for a part of a mini-batch, and what they cost."""

    cost: float
    plan: Plan


@dataclass(frozen=True)
class _Sizes:
    """What all micro-batches of a plan share; see `plan_crossing_rows`."""

    positions: int  # of a micro-batch and shard
    shards: int
    capacity: int
    key_cost: float
    position_cost: float
    menu: RowMenu

    def candidates(self, part: _Part) -> Iterator[Geometry]:
        """Geometries whose rows hold every branch of ``part`` and fit a micro-batch; if none does, the smallest row."""
        fewest, found = -(-part.longest // self.capacity), False
        held = -(-part.tokens // self.capacity)
        for size in _trunk_sizes(part.largest_fork):
            fit = (self.positions - size) // self.capacity
            even = {-(-held // rows) for rows in range(1, _EVEN_ROWS + 1)}
            for lanes in {*_lane_counts(fewest, fit, self.capacity), *even, fit}:
                if fewest <= lanes <= fit:
                    found = True
                    yield Geometry(size, lanes, self.capacity)
        if not found:
            yield Geometry(trunk_bucket(part.largest_fork, part.longest), fewest, self.capacity)

    def holds(self, geometry: Geometry, part: _Part) -> bool:
        """Whether the branches of ``part`` fit into rows of this geometry, and these into a micro-batch."""
        enough = geometry.trunk_size >= part.largest_fork and geometry.room >= part.longest
        return enough and geometry.capacity == self.capacity and geometry.positions <= self.positions

    def shapes(self, geometry: Geometry, rows: int, *, exact: bool = False) -> list[RowShape]:
        """The shapes of micro-batches that hold so many rows; ``exact``: the last one without an empty row."""
        most, a_shard = max(self.positions // geometry.positions, 1), -(-rows // self.shards)
        if self.menu.closed and (known := sorted({-(-n // self.shards) for n in self.menu.rows_of(geometry)})):
            return self._shapes_of(geometry, in_parts(a_shard, known))
        counts = [most] * (a_shard // most)
        if rest := a_shard % most:
            known = (n // self.shards for n in self.menu.rows_of(geometry))
            counts += [rest] if exact else in_parts(rest, sorted({*known, *_powers(_COUNTS, most)}))
        return self._shapes_of(geometry, counts)

    def _shapes_of(self, geometry: Geometry, counts: Sequence[int]) -> list[RowShape]:
        return [RowShape(self.shards * n, *geometry, WINDOW) for n in counts]

    def cost(self, shapes: Sequence[RowShape]) -> float:
        """Work of the micro-batches, in positions."""
        total = 0.0
        for rows, trunk_size, lanes, capacity, window in shapes:
            keys = trunk_size + min(window, lanes) * capacity
            of_trunk = trunk_size * (1 + self.key_cost * trunk_size)
            total += rows * (of_trunk + lanes * capacity * (1 + self.key_cost * keys))
        return total

    def least(self, geometry: Geometry, part: _Part) -> float:
        """A bound of `cost`: rows without a gap."""
        rows = max(-(-part.trunk_tokens // geometry.trunk_size), -(-part.tokens // geometry.room))
        return self.cost(self.shapes(geometry, rows, exact=True))

    def choice(self, geometry: Geometry, part: _Part, smaller: Sequence[Geometry] = ()) -> _Choice:
        """``part`` in rows of this geometry; a row that suits ones of ``smaller`` has the smallest of them."""
        rows: dict[Geometry, list[Row]] = {}
        by_size = sorted(smaller, key=lambda g: (g.positions, g))
        for row in _filled(geometry, part):
            suits = (g for g in by_size if row.filled <= g.trunk_size and row.ends[0] <= g.room)
            rows.setdefault(next(suits, geometry), []).append(row)
        plan: Plan = []
        for own, left in sorted(rows.items(), key=lambda one: (-one[0].positions, one[0])):
            for shape in self.shapes(own, len(left)):
                plan.append((left[: shape.rows], shape))
                left = left[shape.rows :]
        return _Choice(self.cost([shape for _, shape in plan]), plan)

    def with_smaller_ones(self, part: _Part, single: _Choice, bounds: dict[Geometry, float]) -> _Choice:
        """``single``, or rows of several geometries as long as each more of them is worth its compilations."""
        best = single
        worth = lambda cost: (
            cost < _WORTH_ANOTHER * best.cost and (best.cost - cost) * self.position_cost >= _WORTH_OPERATIONS
        )
        if not worth(min(bounds.values())):  # whatever the rows, nothing would be saved
            return single
        tried = {g: () for g in sorted(bounds, key=lambda g: (bounds[g], g))[:_TRIED]}
        for _ in range(_MOST_SMALLER):
            found = [
                (self.choice(g, part, smaller), g, smaller)
                for g, others in tried.items()
                for smaller in ((*others, another) for another in _smaller(g) if another not in others)
            ]
            choice, geometry, smaller = min(found, key=lambda one: one[0].cost, default=(best, None, ()))
            if not worth(choice.cost):
                break
            best, tried = choice, {geometry: smaller}
        return best

    def best(self, part: _Part) -> _Choice:
        """The cheapest choice on the menu, or, if it costs too much, the cheapest of all with `_SPARE` rows added."""
        menu = [g for g in self.menu.geometries() if g.capacity == self.capacity]
        smaller = lambda geometry: tuple(g for g in menu if g.positions < geometry.positions)
        holding = [g for g in menu if self.holds(g, part)]
        known = [self.choice(g, part, others) for g in holding for others in {(), smaller(g)}]
        best = min(known, default=None, key=lambda choice: choice.cost)
        if best and self.menu.closed:
            return best
        bounds = {g: self.least(g, part) for g in self.candidates(part)}
        if best and best.cost <= _SLACK * min(bounds.values()):
            return best
        spare = {g: _SPARE * self.cost(self.shapes(g, 1, exact=True)) for g in bounds}
        new, least = None, math.inf
        for geometry in sorted(bounds, key=lambda g: (bounds[g] + spare[g], g)):
            if bounds[geometry] + spare[geometry] >= least:
                break
            found = self.choice(geometry, part)
            if found.cost + spare[geometry] < least:
                new, least = found, found.cost + spare[geometry]
        new = self.with_smaller_ones(part, new, bounds)
        return best if best and best.cost <= _SLACK * new.cost else new


def in_parts(rows: int, known: Sequence[int]) -> list[int]:
    """Numbers of ``known``, ascending, for so many rows: as many of the largest as are full, then the next that do."""
    parts = []
    while rows > 0:
        full = [n for n in known if n <= rows]
        parts.append(full[-1] if full else known[0])
        rows -= parts[-1]
    return parts


def plan_crossing_rows(
    families: list[Branches],
    *,
    tokens: int,
    shards: int,
    capacity: int,
    key_cost: float,
    position_cost: float,
    halves: bool,
    menu: RowMenu,
) -> Plan:
    """Plan rows whose branches lie end to end over all lanes; its shapes join ``menu``.

    Args:
      families: the branches of each trunk, the longest first.
      tokens, shards, halves: see `fr3e_jax.learning.row_plan.plan_rows`.
      capacity: positions of a lane, enough for a branch to lie in `WINDOW` lanes.
      key_cost: work to attend to a position, as a part of the work of a position without attention.
      position_cost: operations to train on a position, without attention.
      menu: of the run.
    """
    sizes = _Sizes(max(tokens // shards, 1), shards, capacity, key_cost, position_cost, menu)
    whole = _Part(enumerate(families))
    choices = [sizes.best(whole)]
    if halves and whole.largest_fork > SHARED_ROW:
        near = lambda branch: branch.fork <= whole.largest_fork // 2
        parts = [whole.where(near), whole.where(lambda branch: not near(branch))]
        if all(part.families for part in parts):
            cut = [sizes.best(part) for part in parts]
            if sum(choice.cost for choice in cut) < _WORTH_HALVES * choices[0].cost:
                choices = cut
    plan = [micro for choice in choices for micro in choice.plan]
    menu.add(plan)
    return plan


def _smaller(geometry: Geometry) -> list[Geometry]:
    """Geometries for the rows that fill at most three quarters of the lanes, with all or about half of the trunk."""
    trunks = {geometry.trunk_size, size_bucket(-(-geometry.trunk_size // 2))}
    lanes = _steps(1, max(3 * geometry.lanes // 4, 1))
    return [Geometry(size, count, geometry.capacity) for size in sorted(trunks) for count in lanes]


def _trunk_sizes(largest: int) -> list[int]:
    """Sizes of the trunk part: several for rows that trunks may share, or one for a long trunk."""
    if largest > SHARED_ROW:
        return [trunk_bucket(largest, 0)]
    return _steps(max(largest, _LEAST_TRUNK), SHARED_ROW)


def _powers(base: int, most: int) -> Iterator[int]:
    """1, ``base``, ``base`` squared, ... up to ``most``."""
    power = 1
    while power <= most:
        yield power
        power *= base


def _lane_counts(least: int, most: int, capacity: int) -> list[int]:
    """`_steps`; of long lanes also every small number: a row of one trunk may need five."""
    fine = range(least, min(most, _FEW_LANES) + 1) if capacity >= _LONG_LANE else ()
    return sorted({*_steps(least, most), *fine})


def _steps(least: int, most: int) -> list[int]:
    """Those of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... from ``least``, rounded up, to ``most``."""
    steps = [size for size in (1, 2, 3) if least <= size <= most]
    size = size_bucket(max(least, 4))
    while size <= most:
        steps.append(size)
        size = size_bucket(size + 1)
    return steps


def _filled(geometry: Geometry, part: _Part) -> list[Row]:
    """Rows filled trunk by trunk, those with the most tokens first, each into the first row with room for all of it.

    A trunk that no row has room for begins a row, and goes on in further ones.
    """
    rows: list[Row] = []
    for index, branches, fork, tokens in part.most_tokens_first:
        fits = lambda row, fork=fork, tokens=tokens: (
            row.filled + fork <= geometry.trunk_size and row.ends[0] + tokens <= geometry.room
        )
        row = next((row for row in rows[-_OPEN_ROWS:] if fits(row)), None)
        left = row.add(index, branches, geometry.lanes) if row else branches
        while left:
            rows.append(Row(geometry.capacity, crossing=True))
            left = rows[-1].add(index, left, geometry.lanes)
    return rows
