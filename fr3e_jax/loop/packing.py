"""From training trunks to arrays: trunks packed into rows, their branches into lanes, rows into micro-batches.

Sizes come from short lists, so that few programs are compiled; see `fr3e_jax.policy.rows` for the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fr3e_jax.loop.experience import TrainingTrunk
from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.decoder import power_of_two, size_bucket
from fr3e_jax.programs.train import TrainRows

_LEAST_TRUNK = 16
_SHARED_ROW = 256  # shorter trunks share a row: every lane's token scores all trunk positions of its row
_WORTH_SHARING = 0.95  # of the positions, or every trunk keeps a row of its own
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


@dataclass
class _Row:
    """Trunks of a row, and for each lane the (trunk, branch) pairs in it."""

    capacity: int
    trunks: list[int] = field(default_factory=list)
    filled: int = 0  # trunk positions
    lanes: list[list[tuple[int, int]]] = field(default_factory=list)
    room: list[int] = field(default_factory=list)

    def add(self, index: int, size: int, branches: dict[int, int], most_lanes: int = 1 << 30) -> dict[int, int]:
        """Place a trunk and its branches (length by number): first fit, longest first. Returns those without room."""
        self.trunks.append(index)
        self.filled += size
        left_over = {}
        for branch, length in sorted(branches.items(), key=lambda item: -item[1]):
            lane = next((n for n, left in enumerate(self.room) if left >= length), len(self.lanes))
            if lane == most_lanes:
                left_over[branch] = length
                continue
            if lane == len(self.lanes):
                self.lanes.append([])
                self.room.append(self.capacity)
            self.lanes[lane].append((index, branch))
            self.room[lane] -= length
        return left_over


def pack(
    trunks: Sequence[TrainingTrunk],
    *,
    tokens: int,
    pad_id: int,
    shards: int = 1,
    aggregation: str = "token_mean",
    old_logprobs: Callable[[int, int], np.ndarray] | None = None,
    sizes: tuple[int, int] | None = None,
) -> list[MicroBatch]:
    """Micro-batches of about ``tokens`` positions, padding counted; each has at least one row a shard.

    Args:
      trunks: what trains; each branch has at least one token.
      tokens: positions of a micro-batch. A trunk with more branches than fit is put into several rows, and passes the
        network once in each; only a trunk with its longest branch alone may make a micro-batch larger.
      pad_id: token id of unused positions.
      shards: the number of rows is a multiple of it.
      aggregation: sets the weight of each token in the aggregated sum.
      old_logprobs: ``(trunk, branch) -> [T]``; 0 where not given yet.
      sizes: positions of a trunk and of a lane, at least as many as needed, one trunk a row; None: chosen from usual
        sizes to leave little empty.
    """
    if not trunks:
        return []
    sizes_of = [max(b.fork for b in trunk.branches) for trunk in trunks]
    lengths = [[len(b.token_ids) for b in trunk.branches] for trunk in trunks]
    capacity = sizes[1] if sizes else size_bucket(max(map(max, lengths)), _SHARED_LANE)
    rows = _one_trunk_a_row(sizes_of, lengths, capacity, max(tokens // shards, 1))
    plan = _cut(rows, sizes and sizes[0], capacity, tokens, shards)
    if not sizes:
        shared = _shared_rows(sizes_of, lengths, capacity, max(tokens // shards, 1), shards)
        fewer = _cut(shared, None, capacity, tokens, shards)
        if _padded(fewer, capacity) < _WORTH_SHARING * _padded(plan, capacity):
            plan = fewer
    batches = []
    for members, (count, trunk_size, lanes) in plan:
        batch = _empty(count, trunk_size, lanes, capacity, pad_id)
        placements = [
            placement
            for number, row in enumerate(members)
            for placement in _fill_row(batch, number, row, trunks, sizes_of, aggregation, old_logprobs)
        ]
        positions = sum(row.filled for row in members) + sum(p.length for p in placements)
        batches.append(MicroBatch(batch, placements, positions, batch.rows.trunk_ids.size + batch.loss_mask.size))
    return batches


def _trunk_bucket(size: int, least: int) -> int:
    """A power of two where trunks may share a row, since the lanes make most of it; else at most an eighth is empty."""
    return power_of_two(size, least) if size <= _SHARED_ROW else _whole(size, power_of_two(size) // 8)


def _count_bucket(count: int) -> int:
    """Of rows and lanes: the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    return count if count <= 3 else size_bucket(count)


def _lanes_bucket(lanes: int, capacity: int) -> int:
    """As `_count_bucket`, or the next 1024 positions where that is nearer: so many are worth a compilation."""
    return min(_count_bucket(lanes), _whole(lanes, max(1024 // capacity, 1)))


def _whole(size: int, step: int) -> int:
    return -(-size // step) * step


def _one_trunk_a_row(sizes: list[int], lengths: list[list[int]], capacity: int, most: int) -> list[_Row]:
    """A row for each trunk, or as many like ones as it takes to have at most ``most`` positions in each."""
    rows = []
    for index, size in enumerate(sizes):
        branches = dict(enumerate(lengths[index]))
        whole = _Row(capacity)
        whole.add(index, size, branches)
        parts = -(-len(whole.lanes) // max((most - size) // capacity, 1))
        while branches:
            row = _Row(capacity)
            branches = row.add(index, size, branches, -(-len(whole.lanes) // parts))
            rows.append(row)
    return rows


def _shared_rows(sizes: list[int], lengths: list[list[int]], capacity: int, most: int, shards: int) -> list[_Row]:
    """Few rows, a multiple of ``shards``, of at most ``most`` positions, or one trunk where that alone has more.

    The trunk with the most branch positions goes first, each to the row that holds the fewest so far.
    """
    room = max(_SHARED_ROW, max(sizes))
    order = sorted(range(len(sizes)), key=lambda i: (-sum(lengths[i]), -sizes[i], i))
    least = max(-(-sum(sizes) // room), -(-(sum(sizes) + sum(map(sum, lengths))) // most))
    for count in range(-(-least // shards) * shards, len(sizes), shards):
        rows, load = [_Row(capacity) for _ in range(count)], [0] * count
        for index in order:
            best = min(range(count), key=lambda n: (load[n], n))
            rows[best].add(index, sizes[index], dict(enumerate(lengths[index])))
            load[best] += sizes[index] + sum(lengths[index])
        if all(row.filled <= room and row.filled + len(row.lanes) * capacity <= most for row in rows):
            return rows
    return _one_trunk_a_row(sizes, lengths, capacity, most)


def _cut(
    rows: list[_Row], trunk_size: int | None, capacity: int, tokens: int, shards: int
) -> list[tuple[list[_Row], tuple[int, int, int]]]:
    """Micro-batches of like rows: the rows, and how many there are with empty ones, their trunk size and lanes.

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
        cut.append((rows[:size], (shards * (full or _count_bucket(-(-size // shards))), trunk_size, lanes)))
        rows = rows[size:]
    return cut


def _padded(plan: list[tuple[list[_Row], tuple[int, int, int]]], capacity: int) -> int:
    return sum(count * (size + lanes * capacity) for _, (count, size, lanes) in plan)


def _empty(rows: int, trunk_size: int, lanes: int, capacity: int, pad_id: int) -> TrainRows:
    shape = (rows, lanes, capacity)
    integers = lambda shape=shape: np.zeros(shape, np.int32)
    floats = lambda: np.zeros(shape, np.float32)
    return TrainRows(
        rows=Rows(
            trunk_ids=np.full((rows, trunk_size), pad_id, np.int32),
            trunk_segment=integers((rows, trunk_size)),
            trunk_offset=integers((rows, trunk_size)),
            branch_ids=np.full(shape, pad_id, np.int32),
            segment=integers(),
            start=integers(),
            fork=integers(),
            offset=integers(),
        ),
        loss_mask=np.zeros(shape, bool),
        weights=floats(),
        advantages=floats(),
        old_logprobs=floats(),
        sampler_logprobs=floats(),
    )


def _fill_row(batch: TrainRows, number, row: _Row, trunks, sizes, aggregation, old_logprobs) -> Iterator[Placement]:
    rows, starts, end = batch.rows, {}, 0
    for segment, index in enumerate(row.trunks):
        starts[index], at = end, (number, slice(end, end + sizes[index]))
        rows.trunk_ids[at] = trunks[index].token_ids[: sizes[index]]
        rows.trunk_segment[at] = segment + 1
        rows.trunk_offset[at] = np.arange(sizes[index])
        end += sizes[index]
    segment = 0
    for lane, members in enumerate(row.lanes):
        start = 0
        for index, branch_index in members:
            branch, segment = trunks[index].branches[branch_index], segment + 1
            placement = Placement(index, branch_index, number, lane, start, len(branch.token_ids))
            at = placement.where
            rows.branch_ids[at] = branch.token_ids
            rows.segment[at] = segment
            rows.start[at] = starts[index]
            rows.fork[at] = branch.fork
            rows.offset[at] = np.arange(placement.length)
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
