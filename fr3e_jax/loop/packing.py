"""From training trunks to arrays: branches packed end to end into lanes, rows of similar size into micro-batches.

Sizes come from short lists, so that few programs are compiled; see `fr3e_jax.policy.rows` for the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.loop.experience import TrainingTrunk
from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.decoder import power_of_two
from fr3e_jax.programs.train import TrainRows

_LEAST_TRUNK = 16
_SHARED_LANE = 64  # shorter branches share a lane: three of 20 tokens fill 60 of 64 positions, one 20 of 32


@dataclass(frozen=True)
class Placement:
    """Where a branch lies in a micro-batch: ``rows.branch_ids[row, lane, start : start + length]``."""

    trunk: int
    branch: int
    row: int
    lane: int
    start: int
    length: int

    @property
    def where(self) -> tuple[int, int, slice]:
        return self.row, self.lane, slice(self.start, self.start + self.length)


@dataclass
class MicroBatch:
    batch: TrainRows  # NumPy arrays
    placements: list[Placement]
    positions: int  # that pass the network, padding not counted
    padded_positions: int


def pack(
    trunks: Sequence[TrainingTrunk],
    *,
    rows: int,
    pad_id: int,
    aggregation: str = "token_mean",
    old_logprobs: Callable[[int, int], np.ndarray] | None = None,
    sizes: tuple[int, int] | None = None,
) -> list[MicroBatch]:
    """Micro-batches of ``rows`` rows, one trunk a row.

    Args:
      trunks: what trains; each branch has at least one token.
      rows: rows of a micro-batch, the last one filled up with empty rows.
      pad_id: token id of unused positions.
      aggregation: sets the weight of each token in the aggregated sum.
      old_logprobs: ``(trunk, branch) -> [T]``; 0 where not given yet.
      sizes: positions of a trunk and of a lane, at least as many as needed; None: the next of the usual sizes.
    """
    if not trunks:
        return []
    lengths = [max(b.fork for b in trunk.branches) for trunk in trunks]
    longest = max(len(b.token_ids) for t in trunks for b in t.branches)
    trunk_size, capacity = sizes or (power_of_two(max(lengths), _LEAST_TRUNK), _lane_size(longest))
    plans = [_plan_lanes([len(b.token_ids) for b in trunk.branches], capacity) for trunk in trunks]
    order = sorted(range(len(trunks)), key=lambda i: (len(plans[i]), lengths[i], i))
    batches = []
    for start in range(0, len(order), rows):
        members = order[start : start + rows]
        most = max(len(plans[i]) for i in members)
        lanes = 1 if most == 1 else size_bucket(most)
        batch = _empty(rows, trunk_size, lanes, capacity, pad_id)
        placements = []
        for row, i in enumerate(members):
            batch.rows.trunk_ids[row, : lengths[i]] = trunks[i].token_ids[: lengths[i]]
            placements += _fill_row(batch, row, i, trunks[i], plans[i], aggregation, old_logprobs)
        positions = sum(lengths[i] for i in members) + sum(p.length for p in placements)
        batches.append(MicroBatch(batch, placements, positions, rows * (trunk_size + lanes * capacity)))
    return batches


def _lane_size(longest: int) -> int:
    """Twice the longest branch's power of two up to ``_SHARED_LANE``; beyond it, branches have lanes of their own."""
    whole = power_of_two(longest)
    return max(whole, min(2 * whole, _SHARED_LANE))


def size_bucket(size: int, least: int = 4) -> int:
    """The next of 4, 6, 8, 12, 16, 24, 32, ...: at most a third of it is empty, above ``least``."""
    whole = power_of_two(size, least)
    return whole * 3 // 4 if whole > least and size <= whole * 3 // 4 else whole


def _plan_lanes(lengths: list[int], capacity: int) -> list[list[int]]:
    """Branches of each lane: first fit, longest first."""
    lanes: list[list[int]] = []
    room: list[int] = []
    for branch in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        lane = next((n for n, left in enumerate(room) if left >= lengths[branch]), None)
        if lane is None:
            lanes.append([])
            room.append(capacity)
            lane = len(lanes) - 1
        lanes[lane].append(branch)
        room[lane] -= lengths[branch]
    return lanes


def _empty(rows: int, trunk_size: int, lanes: int, capacity: int, pad_id: int) -> TrainRows:
    shape = (rows, lanes, capacity)
    integers = lambda: np.zeros(shape, np.int32)
    floats = lambda: np.zeros(shape, np.float32)
    return TrainRows(
        rows=Rows(
            trunk_ids=np.full((rows, trunk_size), pad_id, np.int32),
            branch_ids=np.full(shape, pad_id, np.int32),
            segment=integers(),
            fork=integers(),
            offset=integers(),
        ),
        loss_mask=np.zeros(shape, bool),
        weights=floats(),
        advantages=floats(),
        old_logprobs=floats(),
        sampler_logprobs=floats(),
    )


def _fill_row(batch, row, index, trunk, plan, aggregation, old_logprobs) -> Iterator[Placement]:
    for lane, members in enumerate(plan):
        start = 0
        for branch_index in members:
            branch = trunk.branches[branch_index]
            placement = Placement(index, branch_index, row, lane, start, len(branch.token_ids))
            at = placement.where
            batch.rows.branch_ids[at] = branch.token_ids
            batch.rows.segment[at] = branch_index + 1
            batch.rows.fork[at] = branch.fork
            batch.rows.offset[at] = np.arange(placement.length)
            batch.loss_mask[at] = True
            batch.weights[at] = 1 / placement.length if aggregation == "seq_mean_token_mean" else 1.0
            batch.advantages[at] = branch.advantages
            batch.sampler_logprobs[at] = branch.sampler_logprobs
            if old_logprobs is not None:
                batch.old_logprobs[at] = old_logprobs(index, branch_index)
            start += placement.length
            yield placement


def aggregation_denominator(trunks: Sequence[TrainingTrunk], aggregation: str, norm_length: int) -> float:
    """The count that `objectives.aggregate` divides by, over all the trunks of a mini-batch."""
    lengths = [len(branch.token_ids) for trunk in trunks for branch in trunk.branches]
    if aggregation == "token_mean":
        return float(sum(lengths))
    return float(len(lengths) * (norm_length if aggregation == "token_sum_norm" else 1))
