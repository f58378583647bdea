"""Mini-batches: the trunks of an optimizer step, packed into rows; per-token values are written and read here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fr3e_jax.learning.dispatch import Work
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk, count_rollouts, split_full_batch
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.packing import MicroBatch, counted_tokens, pack
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.learning.trained_trunks import trains_trunks
from fr3e_jax.programs.host_arrays import zeros_for
from fr3e_jax.rollouts.noise import SHUFFLE

PerToken = list[list[Any]]  # ``[trunk][branch] -> [T]``, of a full batch; None: not on this process


@dataclass
class MiniBatch:
    """Trunks that share an optimizer step, packed."""

    members: list[int]  # indices of the trunks in the full batch
    trunks: list[TrainingTrunk]
    micros: list[MicroBatch]
    counted: np.ndarray | None = None  # tokens of each branch in the loss's denominator; None: all that train

    def __post_init__(self):
        if self.counted is None:
            self.counted = counted_tokens(self.trunks)


def split_mini_batches(
    members: list[tuple[int, TrainingTrunk]], rollouts: int
) -> Iterator[list[tuple[int, TrainingTrunk]]]:
    """Mini-batches of whole trunks with at least ``rollouts`` rollouts; a rest of less than half joins the last one.

    On its own, a rest of one or two trunks would get an optimizer step as large as any other.
    """
    while members:
        taken, rest = split_full_batch([trunk for _, trunk in members], rollouts)
        cut = len(taken) if 2 * count_rollouts(rest) >= rollouts else len(members)
        yield members[:cut]
        members = members[cut:]


def mini_batches(
    setup: LearningSetup, step: int, epoch: int, batch: list[TrainingTrunk]
) -> Iterator[list[tuple[int, TrainingTrunk]]]:
    """The full batch in the random order of ``epoch``, cut by `split_mini_batches`; each trunk with its index."""
    order = setup.noise.generator(SHUFFLE, step, epoch).permutation(len(batch))
    return split_mini_batches([(int(i), batch[i]) for i in order], setup.config.training.mini_batch_rollouts)


def pack_mini_batch(setup: LearningSetup, learner: Learner, members: list[tuple[int, TrainingTrunk]]) -> MiniBatch:
    """Pack trunks with advantages and masks; the scoring pass (`fr3e_jax.learning.scoring`) adds log-probs."""
    numbers, trunks = [position for position, _ in members], [trunk for _, trunk in members]
    micros = pack(trunks, **row_options(setup, learner), aggregation=setup.config.loss.aggregation)
    return MiniBatch(numbers, trunks, micros)


class Packing:
    """The mini-batches of a full batch; the first iteration packs each while the device scores earlier ones."""

    def __init__(self, setup: LearningSetup, learner: Learner, step: int, epoch: int, batch: list[TrainingTrunk]):
        members = mini_batches(setup, step, epoch, batch)
        self._ahead = (pack_mini_batch(setup, learner, each) for each in members)
        self._done: list[MiniBatch] = []

    def __iter__(self) -> Iterator[MiniBatch]:
        yield from self._done
        for mini_batch in self._ahead:
            self._done.append(mini_batch)
            yield mini_batch


def row_options(setup: LearningSetup, learner: Learner) -> dict[str, Any]:
    """The options of `pack` that the run determines."""
    return {
        "pad_id": setup.pad_id,
        "shapes": setup.rows,
        "shards": setup.shards,
        "key_cost": setup.key_cost,
        "own_rows": learner.programs.own_rows,
        "trained_trunks": trains_trunks(setup.config.explore),
    }


def placed(mini_batch: MiniBatch, values: PerToken) -> Iterator[np.ndarray]:
    """Per-token values as an array ``[B, N, T]`` for each micro-batch; 0 on padding and in others' rows."""
    held = [values[member] for member in mini_batch.members]
    kind = next((array.dtype for row in held for array in row if array is not None), np.dtype(np.float32))
    for micro in mini_batch.micros:
        array = zeros_for(micro.batch.loss_mask.shape, kind, whole=bool(micro.local_rows.all()))
        for p in micro.spans:
            if micro.local_rows[p.row]:
                p.of(array)[...] = values[mini_batch.members[p.trunk]][p.branch][p.tokens]
        yield array


def fill(packed: Iterable[MiniBatch], name: str, values: PerToken) -> None:
    """Write per-token values into the field ``name`` of the micro-batches' `TrainRows`."""
    for mini_batch in packed:
        for micro, array in zip(mini_batch.micros, placed(mini_batch, values), strict=True):
            micro.batch = micro.batch._replace(**{name: array})
            if name == "loss_mask":
                of_spans = (values[mini_batch.members[p.trunk]][p.branch][p.tokens] for p in micro.spans)
                micro.loss_tokens = sum(int(np.count_nonzero(weights_of_span)) for weights_of_span in of_spans)


def stacked(values: PerToken) -> np.ndarray:
    """Per-token values as one array ``[branches of the batch, T]``, padded with 0."""
    rows = [array for trunk in values for array in trunk]
    out = np.zeros((len(rows), max(map(len, rows))), rows[0].dtype)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out


def nested(batch: Sequence[TrainingTrunk], array: np.ndarray) -> PerToken:
    """Per-token values of an array ``[branches of the batch, T]``: the inverse of `stacked`."""
    rows = iter(array)
    return [[next(rows)[: len(branch.token_ids)] for branch in trunk.branches] for trunk in batch]


def trained_values(
    batch: Sequence[TrainingTrunk], values: PerToken
) -> Iterator[tuple[TrainingTrunk, TrainingBranch, Any]]:
    """Trunk, branch and values of the tokens that train, of each branch of which this process has values."""
    for trunk, row in zip(batch, values, strict=True):
        for branch, array in zip(trunk.branches, row, strict=True):
            if array is not None:
                yield trunk, branch, branch.trained(array)


def trained_tokens(batch: Sequence[TrainingTrunk], values: PerToken) -> np.ndarray:
    """The values of all tokens that train, concatenated."""
    return np.concatenate([array for *_, array in trained_values(batch, values)])


def counted_here(packed: Iterable[MiniBatch], counted_rows: Callable[[int], np.ndarray], values: PerToken) -> PerToken:
    """The values of the branches that this process counts in sums over all processes; None for the others.

    ``counted_rows``: which of a number of rows these are (`OptimizerPrograms.counted_rows`).
    """
    counted: PerToken = [[None] * len(row) for row in values]
    for mini_batch in packed:
        for micro in mini_batch.micros:
            rows = counted_rows(len(micro.local_rows))
            for p in micro.spans:
                if rows[p.row]:
                    member = mini_batch.members[p.trunk]
                    counted[member][p.branch] = values[member][p.branch]
    return counted


def read_placed(
    batch: list[TrainingTrunk],
    packed: Iterable[MiniBatch],
    compute: Callable[[MicroBatch], Sequence[jax.Array]],
    count: int,
    fetch: Callable[..., Sequence[np.ndarray]],
    *,
    everywhere: bool,
    into: str = "",
) -> Work[list[PerToken]]:
    """Per-token values from the ``count`` arrays ``[B, N, T]`` that ``compute`` returns for each micro-batch.

    The first array is fetched after all computations are dispatched, so that the device never waits in between.

    Args:
      fetch, everywhere: bring arrays to the host (`OptimizerPrograms.fetched`).
      into: the field of the micro-batches' `TrainRows` that gets the first array; empty: none.
    """
    pairs = ((mini_batch, micro) for mini_batch in packed for micro in mini_batch.micros)
    running = [(mini_batch, micro, compute(micro)) for mini_batch, micro in pairs]
    values_by_branch: list[PerToken] = [[[None] * len(trunk.branches) for trunk in batch] for _ in range(count)]
    for mini_batch, micro, on_device in running:
        yield on_device
        arrays = fetch(on_device, everywhere=everywhere)
        if into:
            micro.batch = micro.batch._replace(**{into: arrays[0]})
        for values, array in zip(values_by_branch, arrays, strict=True):
            _read_micro(mini_batch, micro, array, values, everywhere)
    return values_by_branch


def read_spans(
    mini_batch: MiniBatch, arrays: Sequence[np.ndarray], values: PerToken, *, everywhere: bool = True
) -> None:
    """Write arrays ``[B, N, T]``, one for each micro-batch, into ``values`` of the mini-batch's members.

    Without ``everywhere`` the arrays hold the rows of this process alone, and only these are read.
    """
    for micro, array in zip(mini_batch.micros, arrays, strict=True):
        _read_micro(mini_batch, micro, array, values, everywhere)


def _read_micro(
    mini_batch: MiniBatch, micro: MicroBatch, array: np.ndarray, values: PerToken, everywhere: bool
) -> None:
    array = np.ascontiguousarray(array)
    begun: dict[tuple[int, int], np.ndarray] = {}  # all places of a branch are in one row
    for p in micro.spans:
        if not (everywhere or micro.local_rows[p.row]):
            continue
        length = len(mini_batch.trunks[p.trunk].branches[p.branch].token_ids)
        joined = begun.setdefault((p.trunk, p.branch), np.empty(length, array.dtype))
        joined[p.tokens] = p.of(array)
        values[mini_batch.members[p.trunk]][p.branch] = joined
