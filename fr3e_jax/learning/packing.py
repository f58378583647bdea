"""From training trunks to arrays: trunks packed into rows, their branches into lanes, rows into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.micro_batch_shapes import chosen_shapes
from fr3e_jax.learning.row_planner import Row, plan_rows
from fr3e_jax.learning.trained_trunks import planned_sizes
from fr3e_jax.objectives.losses import token_divisors
from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.host_arrays import zeros_for
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.train_programs import TrainRows


class RowSpan(NamedTuple):
    """The place of a branch in a micro-batch: ``length`` positions of a row's lanes, from ``start`` on.

    A branch whose first tokens lie on its trunk has two.
    """

    trunk: int
    branch: int
    row: int
    start: int
    length: int
    capacity: int  # positions of a lane
    first: int = 0  # the branch's token at ``start``

    @property
    def tokens(self) -> slice:
        """Which tokens of the branch these are."""
        return slice(self.first, self.first + self.length)

    @property
    def where(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Index of its tokens in arrays ``[B, N, T]``."""
        return self.row, *np.divmod(np.arange(self.start, self.start + self.length), self.capacity)

    def of(self, array: np.ndarray) -> np.ndarray:
        """Its tokens in an array ``[B, N, T]``, which is contiguous: a view ``[length]``."""
        return array.reshape(len(array), -1)[self.row, self.start : self.start + self.length]


@dataclass
class MicroBatch:
    """Packed rows of one forward and backward pass, and the place of each branch in them."""

    batch: TrainRows  # NumPy arrays; rows of other processes are empty
    spans: list[RowSpan]
    positions: int  # without padding
    padded_positions: int
    loss_tokens: int  # of all rows
    local_rows: np.ndarray  # bool ``[B]``, the rows that are filled: those of this process's devices


def pack(
    trunks: Sequence[TrainingTrunk],
    *,
    pad_id: int,
    shapes: Sequence[RowShape] = (),
    tokens: int = 0,
    shards: int = 1,
    aggregation: str = "token_mean",
    key_cost: float = 0.0,
    own_rows: Callable[[int], np.ndarray] | None = None,
    trained_trunks: bool = False,
) -> list[MicroBatch]:
    """Micro-batches of the declared ``shapes``; each has at least one row a shard.

    Args:
      trunks: the trunks to train on; each branch has at least one token. A trunk with more branches than fit takes
        several rows, and passes the network once in each.
      pad_id: token id of unused positions.
      shapes: see `fr3e_jax.learning.row_planner.plan_rows`; (): chosen for these trunks.
      tokens: positions of a micro-batch, padding counted, where shapes are chosen here.
      shards: the number of rows is a multiple of it.
      aggregation: sets the weight of each token in the aggregated sum.
      key_cost: see `plan_rows`.
      own_rows: which of a number of rows are filled (`OptimizerPrograms.own_rows`); None: all.
      trained_trunks: tokens of `TrainingBranch.on_trunk` pass as the trunk (`fr3e_jax.learning.trained_trunks`); all
        micro-batches then have lanes for their losses.
    """
    if not trunks:
        return []
    forks = [[branch.fork for branch in trunk.branches] for trunk in trunks]
    lengths = [[len(branch.token_ids) for branch in trunk.branches] for trunk in trunks]
    owns = [[trained_trunks and branch.on_trunk for branch in trunk.branches] for trunk in trunks]
    forks, lengths, on_trunk = planned_sizes(forks, lengths, owns)
    if not shapes:
        longest = max(map(max, forks)), max(map(max, lengths))
        shapes = chosen_shapes([(forks, lengths)], longest, tokens=tokens, shards=shards, key_cost=key_cost)
    plan = plan_rows(forks, lengths, shapes, shards=shards, key_cost=key_cost)
    own_rows = own_rows or (lambda rows: np.ones(rows, bool))
    fill = partial(_filled, trunks=trunks, pad_id=pad_id, aggregation=aggregation)
    fill = partial(fill, on_trunk=on_trunk, trained_trunks=trained_trunks)
    return [fill(rows, shape, own_rows(shape.rows)) for rows, shape in plan]


def _filled(
    rows: list[Row],
    shape: RowShape,
    local_rows: np.ndarray,
    *,
    trunks,
    pad_id,
    aggregation,
    on_trunk: Sequence[Sequence[int]],
    trained_trunks: bool,
) -> MicroBatch:
    """The arrays of a micro-batch, written a stretch of adjacent branches at a time."""
    batch = _empty(shape, pad_id, local_rows, trained_trunks)
    starts = _fill_trunks(batch.rows, rows, trunks, local_rows)
    spans = _spans(rows, shape, trunks, on_trunk, starts)
    numbers = _numbered_by_row(spans)
    counted = np.array([trunks[p.trunk].branches[p.branch].loss_tokens for p in spans], np.int64)
    weights = np.asarray(1 / token_divisors(counted, aggregation), np.float32)
    counting = np.arange(max(p.length for p in spans), dtype=np.int32)
    for stretch in _stretches(spans, local_rows):
        members = [spans[n] for n in stretch]
        branches = [trunks[p.trunk].branches[p.branch] for p in members]
        span = members[0]._replace(length=sum(p.length for p in members))
        put = partial(_put, span)
        put_for_each = partial(_put_for_each, span, [p.length for p in members])
        put(batch.rows.branch_ids, _held(members, [branch.token_ids for branch in branches]))
        put(batch.rows.offset, [counting[: p.length] for p in members])
        put_for_each(batch.rows.segment, [numbers[n] for n in stretch])
        put_for_each(batch.rows.start, [starts[p.row, p.trunk] for p in members])
        put_for_each(batch.rows.fork, [branch.fork + p.first for p, branch in zip(members, branches, strict=True)])
        put(batch.loss_mask, _held(members, [branch.trains for branch in branches]))
        put_for_each(batch.weights, weights[stretch])
        put(batch.advantages, _held(members, [branch.advantages for branch in branches]))
        put(batch.sampler_logprobs, _held(members, [branch.sampler_logprobs for branch in branches]))
    batch = batch._replace(rows=_with_routes(batch.rows, rows, trunks, spans, starts, local_rows))
    positions = sum(row.filled for row in rows) + sum(p.length for p in spans if p.start < shape.room)
    loss_tokens = int(counted[[n for n, p in enumerate(spans) if p.start < shape.room]].sum())
    return MicroBatch(batch, spans, positions, shape.positions, loss_tokens, local_rows)


def _spans(
    rows: list[Row], shape: RowShape, trunks, on_trunk: Sequence[Sequence[int]], starts: dict[tuple[int, int], int]
) -> list[RowSpan]:
    """The places of all branches, row by row. The lanes of trunk tokens follow the others."""
    spans = []
    for row_index, row in enumerate(rows):
        for trunk, branch, start in row.branches:
            count = on_trunk[trunk][branch]
            length = len(trunks[trunk].branches[branch].token_ids) - count
            spans.append(RowSpan(trunk, branch, row_index, start, length, shape.capacity, count))
        for trunk, branch, _ in row.branches:
            if count := on_trunk[trunk][branch]:
                at = shape.room + starts[row_index, trunk] + trunks[trunk].branches[branch].fork
                spans.append(RowSpan(trunk, branch, row_index, at, count, shape.capacity))
    return spans


def _with_routes(arrays: Rows, rows: list[Row], trunks, spans: list[RowSpan], starts, local_rows: np.ndarray) -> Rows:
    """The rows with the recorded routes of their tokens, if all trunks and branches have them; padding has expert 0."""
    branches = [trunks[p.trunk].branches[p.branch] for p in spans]
    sequences = [*branches, *(trunks[i] for row in rows for i in row.trunks)]
    have_routes = [sequence.routes is not None for sequence in sequences]
    if not any(have_routes):
        return arrays
    if not all(have_routes):
        raise ValueError(
            f"{have_routes.count(False)} of {len(have_routes)} trunks and branches of a micro-batch have no recorded "
            "routes; expected all or none"
        )
    count, kind = branches[0].routes.shape[1], branches[0].routes.dtype
    of_trunks = np.zeros((*arrays.trunk_ids.shape, count), kind)
    of_lanes = np.zeros((*arrays.branch_ids.shape, count), kind)
    for row_index in np.flatnonzero(local_rows[: len(rows)]):
        for index, size in zip(rows[row_index].trunks, rows[row_index].sizes, strict=True):
            start = starts[row_index, index]
            of_trunks[row_index, start : start + size] = trunks[index].routes[:size]
    for p, branch in zip(spans, branches, strict=True):
        if local_rows[p.row]:
            of_lanes[p.row].reshape(-1, count)[p.start : p.start + p.length] = branch.routes[p.tokens]
    return arrays._replace(trunk_routes=np.moveaxis(of_trunks, -1, 1), branch_routes=np.moveaxis(of_lanes, -1, 1))


def _stretches(spans: Sequence[RowSpan], local_rows: np.ndarray) -> list[list[int]]:
    """The numbers of the spans in ``local_rows``; those that lie end to end in a row together."""
    stretches, end = [], (-1, 0)
    local = [n for n, p in enumerate(spans) if local_rows[p.row]]
    for n in sorted(local, key=lambda n: (spans[n].row, spans[n].start)):
        if (spans[n].row, spans[n].start) != end:
            stretches.append([])
        stretches[-1].append(n)
        end = spans[n].row, spans[n].start + spans[n].length
    return stretches


def _held(spans: Sequence[RowSpan], of_branches: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Of each span's branch the values of the tokens that it holds."""
    return [values[p.tokens] for p, values in zip(spans, of_branches, strict=True)]


def _put(stretch: RowSpan, array: np.ndarray, parts: Sequence[np.ndarray]) -> None:
    """Write the values of all tokens of a stretch, in parts."""
    np.concatenate(parts, out=stretch.of(array), casting="unsafe")


def _put_for_each(stretch: RowSpan, lengths: Sequence[int], array: np.ndarray, values: Sequence[float]) -> None:
    """Write the value of each branch at each of its tokens."""
    per_branch = np.asarray(values, array.dtype)
    stretch.of(array)[...] = per_branch[0] if len(per_branch) == 1 else np.repeat(per_branch, lengths)


def _numbered_by_row(spans: list[RowSpan]) -> list[int]:
    """The number of each branch in its row: 1, 2, ..."""
    numbers, row = [], -1
    for p in spans:
        numbers.append(numbers[-1] + 1 if p.row == row else 1)
        row = p.row
    return numbers


def _fill_trunks(arrays: Rows, rows: list[Row], trunks, local_rows: np.ndarray) -> dict[tuple[int, int], int]:
    """Write the trunks into their rows, if these are local; return the start of each by (row, trunk)."""
    starts = {}
    for row_index, row in enumerate(rows):
        end = 0
        for segment, (index, size) in enumerate(zip(row.trunks, row.sizes, strict=True)):
            starts[row_index, index], at = end, (row_index, slice(end, end + size))
            end += size
            if local_rows[row_index]:
                arrays.trunk_ids[at] = trunks[index].token_ids[:size]
                arrays.trunk_segment[at] = segment + 1
                arrays.trunk_offset[at] = np.arange(size)
    return starts


def _empty(shape: RowShape, pad_id: int, local_rows: np.ndarray, trained_trunks: bool) -> TrainRows:
    """Rows without content."""
    further = shape.trunk_lanes if trained_trunks else 0
    of_trunks, of_lanes = (shape.rows, shape.trunk_size), (shape.rows, shape.lanes + further, shape.capacity)

    whole = bool(local_rows.all())

    def integers(shape=of_lanes):
        return zeros_for(shape, np.int32, whole=whole)

    def floats():
        return zeros_for(of_lanes, np.float32, whole=whole)

    ids = [integers(of_trunks), integers()]
    for array in ids if pad_id else ():
        array[local_rows] = pad_id
    return TrainRows(
        rows=Rows(
            trunk_ids=ids[0],
            trunk_segment=integers(of_trunks),
            trunk_offset=integers(of_trunks),
            branch_ids=ids[1],
            segment=integers(),
            start=integers(),
            fork=integers(),
            offset=integers(),
            window=None if shape.window == 1 else np.ones((shape.rows, shape.window), bool),
            trained_trunk=np.ones((shape.rows, further), bool) if trained_trunks else None,
        ),
        loss_mask=zeros_for(of_lanes, bool, whole=whole),
        weights=floats(),
        advantages=floats(),
        old_logprobs=floats(),
        sampler_logprobs=floats(),
    )


def counted_tokens(trunks: Sequence[TrainingTrunk]) -> np.ndarray:
    """The number of each branch's tokens that train, trunk by trunk, int64 ``[branches]``."""
    return np.array([branch.loss_tokens for trunk in trunks for branch in trunk.branches], np.int64)
