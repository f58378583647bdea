"""From training trunks to arrays: trunks packed into rows, their branches into lanes, rows into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.row_menu import RowMenu
from fr3e_jax.learning.row_plan import plan_rows
from fr3e_jax.learning.row_shapes import Row, RowShape
from fr3e_jax.objectives.losses import token_divisors
from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.train_programs import TrainRows


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The place of a branch in a micro-batch: ``length`` positions of a row's lanes, from ``start`` on."""

    trunk: int
    branch: int
    row: int
    start: int
    length: int
    capacity: int  # positions of a lane

    @property
    def where(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Index of its tokens in arrays ``[B, N, T]``."""
        return self.row, *np.divmod(np.arange(self.start, self.start + self.length), self.capacity)


@dataclass
class MicroBatch:
    """Packed rows of one forward and backward pass, and the place of each branch in them."""

    batch: TrainRows  # NumPy arrays
    spans: list[RowSpan]
    positions: int  # without padding
    padded_positions: int


def pack(
    trunks: Sequence[TrainingTrunk],
    *,
    tokens: int,
    pad_id: int,
    shards: int = 1,
    aggregation: str = "token_mean",
    old_logprobs: Callable[[int, int], np.ndarray] | None = None,
    sizes: tuple[int, int] | None = None,
    longest: int = 0,
    key_cost: float = 0.0,
    position_cost: float = 0.0,
    menu: RowMenu | None = None,
) -> list[MicroBatch]:
    """Micro-batches of about ``tokens`` positions, padding counted; each has at least one row a shard.

    Args:
      trunks: the trunks to train on; each branch has at least one token.
      tokens: positions of a micro-batch. A trunk with more branches than fit takes several rows, and passes the network
        once in each. Only a trunk that does not fit with its longest branch alone makes a micro-batch larger.
      pad_id: token id of unused positions.
      shards: the number of rows is a multiple of it.
      aggregation: sets the weight of each token in the aggregated sum.
      old_logprobs: ``(trunk, branch) -> [T]``; None: 0, to be filled in later.
      sizes: positions of a trunk and of a lane, enough for the longest trunk and branch, with one trunk in each row.
        None: chosen from usual sizes, to leave little empty.
      longest: tokens of the longest branch that the run may have; 0: of these trunks. Equal ones make few shapes.
      key_cost, position_cost, menu: see `fr3e_jax.learning.row_plan.plan_rows`.
    """
    if not trunks:
        return []
    forks = [[branch.fork for branch in trunk.branches] for trunk in trunks]
    lengths = [[len(branch.token_ids) for branch in trunk.branches] for trunk in trunks]
    run = {"key_cost": key_cost, "position_cost": position_cost, "menu": menu}
    plan = plan_rows(forks, lengths, tokens=tokens, shards=shards, fixed=sizes, longest=longest, **run)
    return [_filled(rows, shape, trunks, pad_id, aggregation, old_logprobs) for rows, shape in plan]


def _filled(rows: list[Row], shape: RowShape, trunks, pad_id, aggregation, old_logprobs) -> MicroBatch:
    """The arrays of a micro-batch. Each is written once for all branches: one branch at a time takes far longer."""
    batch = _empty(shape, pad_id)
    starts = _fill_trunks(batch.rows, rows, trunks)
    spans = [
        RowSpan(trunk, branch, number, start, len(trunks[trunk].branches[branch].token_ids), shape.capacity)
        for number, row in enumerate(rows)
        for trunk, branch, start in row.branches
    ]
    branches = [trunks[p.trunk].branches[p.branch] for p in spans]
    length = np.array([p.length for p in spans])
    begin = np.array([p.row * shape.lanes * shape.capacity + p.start for p in spans])
    offset = _counted_up(length)
    at = np.repeat(begin, length) + offset

    def put(array: np.ndarray, values: np.ndarray) -> None:
        """Write a value for each token."""
        array.reshape(-1)[at] = values

    def put_for_each(array: np.ndarray, values: Sequence[int], kind: type = np.int32) -> None:
        """Write a branch's value at each of its tokens."""
        put(array, np.repeat(np.asarray(values, kind), length))

    put(batch.rows.branch_ids, np.concatenate([branch.token_ids for branch in branches]))
    put(batch.rows.offset, offset)
    put_for_each(batch.rows.segment, _numbered_by_row(spans))
    put_for_each(batch.rows.start, [starts[p.row, p.trunk] for p in spans])
    put_for_each(batch.rows.fork, [branch.fork for branch in branches])
    trains = [branch.trains for branch in branches]
    put(batch.loss_mask, np.concatenate(trains))
    counted = np.array([mask.sum() for mask in trains], np.int64)
    put_for_each(batch.weights, 1 / token_divisors(counted, aggregation), np.float32)
    put(batch.advantages, np.concatenate([branch.advantages for branch in branches]))
    put(batch.sampler_logprobs, np.concatenate([branch.sampler_logprobs for branch in branches]))
    if old_logprobs is not None:
        for p in spans:
            batch.old_logprobs[p.where] = old_logprobs(p.trunk, p.branch)
    batch = batch._replace(rows=_with_routes(batch.rows, rows, trunks, branches, starts, at))
    positions = sum(row.filled for row in rows) + len(at)
    return MicroBatch(batch, spans, positions, shape.positions)


def _with_routes(arrays: Rows, rows: list[Row], trunks, branches, starts, at: np.ndarray) -> Rows:
    """The rows with the recorded routes of their tokens, if every trunk and branch has them; padding passes expert 0.

    ``at``: the place of each branch token among those of all lanes.
    """
    known = [one.routes is not None for one in (*branches, *(trunks[i] for row in rows for i in row.trunks))]
    if not any(known):
        return arrays
    if not all(known):
        raise ValueError(
            f"{known.count(False)} of {len(known)} trunks and branches of a micro-batch have no recorded routes; "
            "expected all or none: take rollouts of one kind, or set model.experts.router_replay=false"
        )
    count, kind = branches[0].routes.shape[1], branches[0].routes.dtype
    of_trunks = np.zeros((*arrays.trunk_ids.shape, count), kind)
    of_lanes = np.zeros((*arrays.branch_ids.shape, count), kind)
    for number, row in enumerate(rows):
        for index, size in zip(row.trunks, row.sizes, strict=True):
            start = starts[number, index]
            of_trunks[number, start : start + size] = trunks[index].routes[:size]
    of_lanes.reshape(-1, count)[at] = np.concatenate([branch.routes for branch in branches])
    return arrays._replace(trunk_routes=np.moveaxis(of_trunks, -1, 1), branch_routes=np.moveaxis(of_lanes, -1, 1))


def _counted_up(lengths: np.ndarray) -> np.ndarray:
    """0, 1, ..., n - 1 for each n of ``lengths``, concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def _numbered_by_row(spans: list[RowSpan]) -> list[int]:
    """The number of each branch in its row: 1, 2, ..."""
    numbers, row = [], -1
    for p in spans:
        numbers.append(numbers[-1] + 1 if p.row == row else 1)
        row = p.row
    return numbers


def _fill_trunks(arrays: Rows, rows: list[Row], trunks) -> dict[tuple[int, int], int]:
    """Write the trunks into their rows; return the start of each by (row, trunk)."""
    starts = {}
    for number, row in enumerate(rows):
        end = 0
        for segment, (index, size) in enumerate(zip(row.trunks, row.sizes, strict=True)):
            starts[number, index], at = end, (number, slice(end, end + size))
            arrays.trunk_ids[at] = trunks[index].token_ids[:size]
            arrays.trunk_segment[at] = segment + 1
            arrays.trunk_offset[at] = np.arange(size)
            end += size
    return starts


def _empty(shape: RowShape, pad_id: int) -> TrainRows:
    of_trunks, of_lanes = (shape.rows, shape.trunk_size), (shape.rows, shape.lanes, shape.capacity)
    integers = lambda shape=of_lanes: np.zeros(shape, np.int32)
    floats = lambda: np.zeros(of_lanes, np.float32)
    return TrainRows(
        rows=Rows(
            trunk_ids=np.full(of_trunks, pad_id, np.int32),
            trunk_segment=integers(of_trunks),
            trunk_offset=integers(of_trunks),
            branch_ids=np.full(of_lanes, pad_id, np.int32),
            segment=integers(),
            start=integers(),
            fork=integers(),
            offset=integers(),
            window=None if shape.window == 1 else np.ones((shape.rows, shape.window), bool),
        ),
        loss_mask=np.zeros(of_lanes, bool),
        weights=floats(),
        advantages=floats(),
        old_logprobs=floats(),
        sampler_logprobs=floats(),
    )


def counted_tokens(trunks: Sequence[TrainingTrunk]) -> np.ndarray:
    """The number of each branch's tokens that train, trunk by trunk, int64 ``[branches]``."""
    return np.array([branch.trains.sum() for trunk in trunks for branch in trunk.branches], np.int64)
