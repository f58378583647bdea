"""Packing loses, repeats and mixes up nothing, and a mini-batch weighs its tokens as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.loop.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.loop.packing import aggregation_denominator, pack

PAD = 0


def training_trunk(seed: int, trunk_length: int, branches: list[tuple[int, int]]) -> TrainingTrunk:
    """``branches``: fork and length of each."""
    random = np.random.default_rng(seed)
    made = [
        TrainingBranch(
            fork,
            random.integers(2, 22, length, dtype=np.int32),
            random.normal(size=length).astype(np.float32),
            -random.random(length, dtype=np.float32),
        )
        for fork, length in branches
    ]
    return TrainingTrunk(random.integers(2, 22, trunk_length, dtype=np.int32), made, seed)


@pytest.fixture
def trunks() -> list[TrainingTrunk]:
    return [
        training_trunk(1, 30, [(3, 20), (9, 1), (9, 7), (12, 64), (12, 60)]),
        training_trunk(2, 3, [(3, 5), (3, 6)]),
        training_trunk(3, 40, [(40, 33)] * 9),
        training_trunk(4, 5, [(1, 1)]),
        training_trunk(5, 17, [(16, 16), (17, 17), (2, 2)]),
    ]


def old_logprobs(trunk: int, branch: int) -> np.ndarray:
    return np.float32(-100 * trunk - branch)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_every_branch_is_placed_once_and_reads_back(trunks, rows):
    batches = pack(trunks, rows=rows, pad_id=PAD, old_logprobs=old_logprobs)
    placements = [(micro, p) for micro in batches for p in micro.placements]
    everything = [(i, b) for i, trunk in enumerate(trunks) for b in range(len(trunk.branches))]
    assert sorted((p.trunk, p.branch) for _, p in placements) == everything
    for micro, placed in placements:
        batch, where, branch = micro.batch, placed.where, trunks[placed.trunk].branches[placed.branch]
        np.testing.assert_array_equal(batch.rows.branch_ids[where], branch.token_ids)
        np.testing.assert_array_equal(batch.rows.fork[where], branch.fork)
        np.testing.assert_array_equal(batch.rows.offset[where], np.arange(len(branch.token_ids)))
        np.testing.assert_array_equal(batch.advantages[where], branch.advantages)
        np.testing.assert_array_equal(batch.sampler_logprobs[where], branch.sampler_logprobs)
        np.testing.assert_array_equal(batch.old_logprobs[where], old_logprobs(placed.trunk, placed.branch))
        visible = batch.rows.trunk_ids[placed.row][: branch.fork]
        np.testing.assert_array_equal(visible, trunks[placed.trunk].token_ids[: branch.fork])


@pytest.mark.parametrize("rows", [1, 4])
def test_branches_of_a_lane_do_not_overlap_and_the_rest_is_empty(trunks, rows):
    for micro in pack(trunks, rows=rows, pad_id=PAD):
        batch, covered = micro.batch, np.zeros(micro.batch.loss_mask.shape, int)
        for placed in micro.placements:
            covered[placed.where] += 1
            segment = batch.rows.segment[placed.where]
            assert segment[0] > 0 and (segment == segment[0]).all()
        assert covered.max() == 1
        np.testing.assert_array_equal(batch.loss_mask, covered == 1)
        np.testing.assert_array_equal(batch.rows.segment > 0, covered == 1)
        for array in (batch.weights, batch.advantages, batch.old_logprobs, batch.sampler_logprobs):
            assert not array[covered == 0].any()
        assert (batch.rows.branch_ids[covered == 0] == PAD).all()
        for row in range(rows):
            segments = [batch.rows.segment[p.where][0] for p in micro.placements if p.row == row]
            assert len(set(segments)) == len(segments), "two branches of a row would see one another"


def test_trunks_are_cut_behind_their_largest_fork(trunks):
    (micro,) = pack(trunks, rows=8, pad_id=PAD)
    shown = {p.trunk: p.row for p in micro.placements}
    for index, row in shown.items():
        largest = max(branch.fork for branch in trunks[index].branches)
        assert (micro.batch.rows.trunk_ids[row, largest:] == PAD).all()
    largest = [12, 3, 40, 1, 17]
    assert micro.positions == sum(largest) + sum(len(b.token_ids) for trunk in trunks for b in trunk.branches)
    assert micro.padded_positions == micro.batch.rows.trunk_ids.size + micro.batch.rows.branch_ids.size
    assert micro.padded_positions > micro.positions


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # Per-token values 1, 2, ... of branches of 2, 1 and 3 tokens: [1, 2], [3], [4, 5, 6]; norm_length 10.
        ("token_mean", 21 / 6),
        ("seq_mean_token_mean", (1.5 + 3 + 5) / 3),
        ("seq_mean_token_sum", (3 + 3 + 15) / 3),
        ("token_sum_norm", (3 + 3 + 15) / 3 / 10),
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_weights_and_denominator_make_the_mean_of_the_whole_mini_batch(aggregation, expected, rows):
    trunks = [training_trunk(1, 4, [(4, 2), (2, 1)]), training_trunk(2, 3, [(3, 3)])]
    values = iter(range(1, 7))
    for trunk in trunks:
        for branch in trunk.branches:
            branch.advantages = np.array([next(values) for _ in branch.token_ids], np.float32)
    total = 0.0
    for micro in pack(trunks, rows=rows, pad_id=PAD, aggregation=aggregation):
        total += (micro.batch.advantages * micro.batch.weights * micro.batch.loss_mask).sum()
    assert total / aggregation_denominator(trunks, aggregation, 10) == pytest.approx(expected)


def test_nothing_is_packed_into_nothing():
    assert pack([], rows=4, pad_id=PAD) == []


def test_shapes_come_from_a_short_list():
    """Every new shape is a compilation: forty different batches may not bring forty."""
    random = np.random.default_rng(0)
    shapes = set()
    for seed in range(40):
        sizes = [(int(random.integers(1, 12)), int(random.integers(1, 30))) for _ in range(random.integers(1, 40))]
        for micro in pack([training_trunk(seed, 12, sizes)], rows=2, pad_id=PAD):
            shapes.add((micro.batch.rows.trunk_ids.shape, micro.batch.rows.branch_ids.shape))
    assert len(shapes) <= 8
