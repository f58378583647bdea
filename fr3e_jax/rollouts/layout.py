"""The choice of slots and lanes for one call of the decoder: arithmetic on the host, without a device.

The settings give the most lanes: some slots with some lanes each. Layouts in slots of `NARROW` lanes are tried, too: as
many lanes, so that a long branch keeps few lanes of its slot from the next trunk; and half as many, so that branches
follow each other in a lane. Where the recipe says how long responses are, a quarter and an eighth are tried as well: a
call whose branches fill all lanes at once would wait for its longest one with nearly all lanes idle. On CPU the time of
a decode step grows with its lanes, idle ones included. On accelerators it grows little, as each step reads all weights:
there fewer lanes are chosen only where they hardly take more steps, and expected lengths are not read. The choice
depends on the requests and the recipe alone, never on sampled tokens or on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fr3e_jax.programs.size_buckets import power_of_two
from fr3e_jax.rollouts.expected_lengths import ExpectedLengths
from fr3e_jax.rollouts.schedule import Schedule

NARROW = 4  # lanes of a slot; with fewer, the attention to the trunk becomes slow
LEAST_LANES = 32  # of a layout that is not the full one
STEP_COST = 16  # a decode step costs as much as this many lanes more (Order's model on CPU)
WEIGHTS_COST = 4  # on accelerators it costs as much as this many times all lanes more (7B on v5e: half-full rings)
COPY_COST = 64  # another slot for a trunk, in the same unit
CHUNK_COST = 96  # the host's work for a chunk, in the same unit
_INDIFFERENCE = 1.02  # the first layout within two percent of the least cost is taken
_FILLED = 0.75  # expected lengths are read where branches fill so much of the lanes: smaller calls are short anyway
_WORTH_COMPILING = 0.7  # expected lengths may change the layout, and so the programs, for so much of the cost
_SLACK = 16  # the caches may be larger than those of the settings by one part in so many
_LEVELS = 16  # lengths that are told apart where they are the caps
_EXPECTED_LEVELS = 64  # and where they are expected: the mean may be an eighth of the longest
_JUDGED = 4  # a call of expected lengths is judged by its first branches, so many for each lane
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
    full: Layout,
    limits: Sequence[Sequence[int]],
    trunk_capacity: int,
    capacity: int,
    shards: int = 1,
    expected: ExpectedLengths | None = None,
    chunk: int = 1,
    step_cost: int = STEP_COST,
) -> Layout:
    """The layout in which the branches cost least, in a sixteenth more memory than ``full`` at most.

    Of nearly equal ones, slots of few lanes come first: a long branch keeps its whole slot from the next trunk.

    Args:
      full: the layout of the settings.
      limits: ``limits[i][b]``, the cap on the tokens of branch b of request i.
      trunk_capacity, capacity: positions of a slot's trunk, and of a lane's ring in the end.
      shards: the number of slots is a multiple of it.
      expected: the lengths that branches will have; None: not known, so that branches count as long as their caps.
      chunk: decode steps of a compiled call, after which lanes are filled again.
      step_cost: see `step_cost`.
    """
    return _fitted(full, tuple(map(tuple, limits)), trunk_capacity, capacity, shards, expected, chunk, step_cost)


def step_cost(full: Layout, accelerator: bool) -> int:
    """The cost of a decode step beside that of its lanes, in lanes."""
    return WEIGHTS_COST * full.total if accelerator else STEP_COST


@lru_cache(maxsize=64)
def _fitted(
    full: Layout, limits, trunk_capacity: int, capacity: int, shards: int, expected, chunk: int, step: int
) -> Layout:
    """The choice of `fitted_layout`, kept: rounds of base rollouts have the same caps step after step."""
    layouts = [*_narrow(full, trunk_capacity, capacity, shards), full]
    cost = lambda one, *known: estimated_cost(one, limits, *known, step_cost=step)
    by_caps = _cheapest(layouts, [cost(one) for one in layouts] if len(layouts) > 1 else [0])
    if expected is None or full.lanes <= NARROW or sum(map(len, limits)) < _FILLED * full.total:
        return by_caps
    limits = limits[: int(np.searchsorted(np.cumsum([len(row) for row in limits]), _JUDGED * full.total)) + 1]
    lengths = expected.of(limits)
    fewer = dict.fromkeys([by_caps, *layouts, *_narrow(full, trunk_capacity, capacity, shards, (2, 4, 8))])
    costs = [cost(one, lengths, chunk) for one in fewer]
    found = _cheapest(list(fewer), costs)
    return found if min(costs) <= _WORTH_COMPILING * costs[0] else by_caps


def _cheapest(layouts: Sequence[Layout], costs: Sequence[int]) -> Layout:
    return next(one for one, cost in zip(layouts, costs, strict=True) if cost <= _INDIFFERENCE * min(costs))


def _narrow(full: Layout, trunk_capacity: int, capacity: int, shards: int, parts: Sequence[int] = (2,)) -> list[Layout]:
    """The layouts in slots of `NARROW` lanes: with as many lanes as in ``full``, and with one in so many ``parts``."""
    if full.lanes <= NARROW:
        return []
    memory = full.positions(trunk_capacity, capacity) * (_SLACK + 1) // _SLACK
    fits = memory // Layout(1, NARROW).positions(trunk_capacity, capacity)
    most = min(fits, full.total // NARROW) // _STEP * _STEP
    # Fewer slots are a power of two, whatever the trunk's length.
    fewer = [power_of_two(full.total // NARROW // part + 1) // 2 for part in parts]
    found = [Layout(min(slots, most) // shards * shards, NARROW) for slots in (most, *fewer)]
    return list(dict.fromkeys(one for one in found if one.total >= LEAST_LANES))


class Work(NamedTuple):
    """The work of one call of the decoder."""

    steps: int  # of decoding
    chunks: int  # of steps
    copies: int  # of trunks into other slots


def simulated(limits: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]], layout: Layout, chunk: int) -> Work:
    """The work of a call of the decoder whose branches turn out as long as ``lengths``.

    Args:
      limits: ``limits[i][b]``, the cap on the tokens of branch b of request i, which is what the schedule knows.
      lengths: their tokens, each at least 1.
      layout: slots and lanes.
      chunk: decode steps of a compiled call, after which lanes are filled again.
    """
    schedule, ends = Schedule(limits, *layout), np.concatenate([np.asarray(row, np.int64) for row in lengths])
    left, steps, chunks, copies = np.zeros(layout, np.int64), 0, 0, 0
    while True:
        placed, new = schedule.assign()
        copies += sum(one.source is not None for one in placed)
        left = np.where(new, ends[schedule.branch], left)
        active = schedule.active
        if not active.any():
            return Work(steps, chunks, copies)
        soonest = np.sort(left[active])
        taken = min(chunk, int(soonest[min(schedule.patience(), len(soonest)) - 1]))
        steps, chunks = steps + taken, chunks + 1
        left = np.maximum(left - taken, 0)
        schedule.end(active & (left == 0))


def lane_steps(limits: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]], layout: Layout, chunk: int) -> int:
    """Lane steps, idle ones included, of a call of the decoder; arguments of `simulated`."""
    return simulated(limits, lengths, layout, chunk).steps * layout.total


def estimated_cost(
    layout: Layout,
    limits: Sequence[Sequence[int]],
    lengths: Sequence[Sequence[int]] | None = None,
    chunk: int = 1,
    step_cost: int = STEP_COST,
) -> int:
    """Lane steps, and the three other costs in this unit, until all branches have as many tokens as ``lengths``.

    Without ``lengths`` they have as many as ``limits`` allow, and chunks cost nothing: their ends are not known.
    """
    longest = max(max(row, default=1) for row in limits)
    level = -(-longest // (_LEVELS if lengths is None else _EXPECTED_LEVELS))
    in_levels = lambda rows: [[-(-tokens // level) for tokens in row] for row in rows]
    if lengths is None:
        steps, chunks, copies = simulated(in_levels(limits), in_levels(limits), layout, longest)
        chunks = 0
    else:
        steps, chunks, copies = simulated(in_levels(limits), in_levels(lengths), layout, max(chunk // level, 1))
        chunks = max(chunks, steps * level // chunk)
    return steps * level * (layout.total + step_cost) + copies * COPY_COST + chunks * CHUNK_COST
