"""The choice of slots and lanes for one call of the decoder: arithmetic on the host, without a device.

The settings give the most lanes: some slots with some lanes each. Two other layouts are tried: as many lanes in slots
of `NARROW` lanes, so that a long branch keeps few lanes of its slot from the next trunk; and half as many of these
slots, so that branches of unequal lengths follow each other in a lane. On CPU the time of a decode step grows with its
lanes, idle ones included. The choice depends on the requests alone, never on sampled tokens or on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fr3e_jax.programs.size_buckets import power_of_two
from fr3e_jax.rollouts.schedule import Schedule

NARROW = 4  # lanes of a slot; with fewer, the attention to the trunk becomes slow
LEAST_LANES = 32  # of a layout that is not the full one
STEP_COST = 16  # a decode step costs as much as this many lanes more (Order's model on CPU)
COPY_COST = 64  # another slot for a trunk, in the same unit
_INDIFFERENCE = 1.02  # the first layout within two percent of the least cost is taken
_SLACK = 16  # the caches may be larger than those of the settings by one part in so many
_LEVELS = 16  # lengths that are told apart in the estimate
_STEP = 4  # slots of a layout with all lanes are a multiple of it: few shapes


class Layout(NamedTuple):
    """Trunk slots, and lanes of each."""

    slots: int
    lanes: int

    @property
    def total(self) -> int:
        """Lanes of all slots."""
        return self.slots * self.lanes

    def positions(self, trunk_capacity: int, capacity: int) -> int:
        """Positions of the caches: of trunks of ``trunk_capacity`` and of rings of ``capacity``."""
        return self.slots * (trunk_capacity + self.lanes * capacity)


def fitted_layout(
    full: Layout, limits: Sequence[Sequence[int]], trunk_capacity: int, capacity: int, shards: int = 1
) -> Layout:
    """The layout in which branches as long as their caps cost least, in a sixteenth more memory than ``full`` at most.

    Of nearly equal ones, slots of few lanes come first: lengths below the caps are not known, and a long branch keeps
    its whole slot from the next trunk.

    Args:
      full: the layout of the settings.
      limits: ``limits[i][b]``, the cap on the tokens of branch b of request i.
      trunk_capacity, capacity: positions of a slot's trunk, and of a lane's ring in the end.
      shards: the number of slots is a multiple of it.
    """
    return _cheapest((*_narrow(full, trunk_capacity, capacity, shards), full), tuple(map(tuple, limits)))


@lru_cache(maxsize=16)
def _cheapest(layouts: tuple[Layout, ...], limits: tuple[tuple[int, ...], ...]) -> Layout:
    """The choice of `fitted_layout`, kept: rounds of base rollouts have the same caps step after step."""
    costs = [estimated_cost(one, limits) for one in layouts] if len(layouts) > 1 else [0]
    return next(one for one, cost in zip(layouts, costs, strict=True) if cost <= _INDIFFERENCE * min(costs))


def _narrow(full: Layout, trunk_capacity: int, capacity: int, shards: int) -> list[Layout]:
    """The layouts in slots of `NARROW` lanes: as many lanes as in ``full``, and half as many."""
    if full.lanes <= NARROW:
        return []
    memory = full.positions(trunk_capacity, capacity) * (_SLACK + 1) // _SLACK
    fits = memory // Layout(1, NARROW).positions(trunk_capacity, capacity)
    most = min(fits, full.total // NARROW) // _STEP * _STEP
    half = power_of_two(full.total // NARROW // 2 + 1) // 2  # a power of two, whatever the trunk's length
    found = [Layout(slots // shards * shards, NARROW) for slots in (most, min(most, half))]
    return [one for one in found if one.total >= LEAST_LANES]


def lane_steps(limits: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]], layout: Layout, chunk: int) -> int:
    """Lane steps, idle ones included, of a call of the decoder whose branches turn out as long as ``lengths``.

    Args:
      limits: ``limits[i][b]``, the cap on the tokens of branch b of request i, which is what the schedule knows.
      lengths: their tokens, each at least 1.
      layout: slots and lanes.
      chunk: decode steps of a compiled call, after which lanes are filled again.
    """
    schedule, ends = Schedule(limits, *layout), np.concatenate([np.asarray(row, np.int64) for row in lengths])
    left, steps = np.zeros(layout, np.int64), 0
    while True:
        _, new = schedule.assign()
        left = np.where(new, ends[schedule.branch], left)
        active = schedule.active
        if not active.any():
            return steps * layout.total
        soonest = np.sort(left[active])
        taken = min(chunk, int(soonest[min(schedule.patience(), len(soonest)) - 1]))
        steps += taken
        left = np.maximum(left - taken, 0)
        schedule.end(active & (left == 0))


def estimated_cost(layout: Layout, limits: Sequence[Sequence[int]]) -> int:
    """Lane steps, with `STEP_COST` and `COPY_COST`, until all branches have as many tokens as ``limits`` allow."""
    longest = max(max(row, default=1) for row in limits)
    level = -(-longest // _LEVELS)
    levels = [[-(-limit // level) for limit in row] for row in limits]
    schedule = Schedule(levels, *layout)
    left = np.zeros(layout, np.int64)
    steps = copies = 0
    while True:
        placed, new = schedule.assign()
        copies += sum(one.source is not None for one in placed)
        left = np.where(new, schedule.limits[schedule.branch], left)
        active = schedule.active
        if not active.any():
            return steps * level * (layout.total + STEP_COST) + copies * COPY_COST
        ends = np.sort(left[active])
        taken = int(ends[min(schedule.patience(), len(ends)) - 1])
        steps += taken
        left = np.maximum(left - taken, 0)
        schedule.end(active & (left == 0))
