"""Packing loses, repeats and mixes up no token, and weights are those of the whole mini-batch."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from packed_trunks import training_trunk

from fr3e_jax.configuration import load_config
from fr3e_jax.learning import mini_batches
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.micro_batch_shapes import WINDOW, declared_rows
from fr3e_jax.learning.packing import counted_tokens, pack
from fr3e_jax.learning.row_planner import plan_rows
from fr3e_jax.objectives.losses import aggregation_denominator
from fr3e_jax.programs.row_shape import RowShape

PAD = 0


@pytest.fixture
def trunks() -> list[TrainingTrunk]:
    return [
        training_trunk(1, 30, [(3, 20), (9, 1), (9, 7), (12, 64), (12, 60)]),
        training_trunk(2, 3, [(3, 5), (3, 6)]),
        training_trunk(3, 40, [(40, 33)] * 9),
        training_trunk(4, 5, [(1, 1)]),
        training_trunk(5, 17, [(16, 16), (17, 17), (2, 2)]),
    ]


@pytest.mark.parametrize(("tokens", "shards"), [(1, 1), (500, 1), (1000, 2), (10_000, 1), (10_000, 8)])
def test_every_branch_is_placed_once_and_reads_back(trunks, tokens, shards):
    batches = pack(trunks, tokens=tokens, shards=shards, pad_id=PAD)
    placements = [(micro, p) for micro in batches for p in micro.spans]
    everything = [(i, b) for i, trunk in enumerate(trunks) for b in range(len(trunk.branches))]
    assert sorted((p.trunk, p.branch) for _, p in placements) == everything
    for micro, placed in placements:
        batch, where, branch = micro.batch, placed.where, trunks[placed.trunk].branches[placed.branch]
        np.testing.assert_array_equal(batch.rows.branch_ids[where], branch.token_ids)
        np.testing.assert_array_equal(batch.rows.fork[where], branch.fork)
        np.testing.assert_array_equal(batch.rows.offset[where], np.arange(len(branch.token_ids)))
        np.testing.assert_array_equal(batch.advantages[where], branch.advantages)
        np.testing.assert_array_equal(batch.sampler_logprobs[where], branch.sampler_logprobs)
        start = batch.rows.start[where][0]
        assert (batch.rows.start[where] == start).all()
        seen = (placed.row, slice(start, start + branch.fork))
        np.testing.assert_array_equal(batch.rows.trunk_ids[seen], trunks[placed.trunk].token_ids[: branch.fork])
        np.testing.assert_array_equal(batch.rows.trunk_offset[seen], np.arange(branch.fork))
        assert len(set(batch.rows.trunk_segment[seen])) == 1


@pytest.mark.parametrize(("process", "pad_id", "routes"), [(0, 0, None), (1, 7, None), (0, 7, 4), (1, 0, 4)])
def test_a_process_fills_its_own_rows_as_one_that_fills_all(trunks, process, pad_id, routes):
    """The other rows stay empty; counts are of all rows."""
    if routes:
        lengths = lambda trunk: [(b.fork, len(b.token_ids)) for b in trunk.branches]
        trunks = [training_trunk(n, len(t.token_ids), lengths(t), routes) for n, t in enumerate(trunks)]
    options = {"tokens": 1000, "shards": 2, "pad_id": pad_id}
    mine = lambda rows: np.arange(rows) // (rows // 2) == process
    whole, part = pack(trunks, **options), pack(trunks, **options, own_rows=mine)
    for all_rows, own in zip(whole, part, strict=True):
        filled = mine(len(own.batch.loss_mask))
        np.testing.assert_array_equal(own.local_rows, filled)
        for found, wanted in zip(jax.tree.leaves(own.batch), jax.tree.leaves(all_rows.batch), strict=True):
            np.testing.assert_array_equal(found[filled], wanted[filled])
        assert not own.batch.loss_mask[~filled].any() and not own.batch.rows.trunk_ids[~filled].any()
        for array in (own.batch.rows.trunk_routes, own.batch.rows.branch_routes) if routes else ():
            assert array[filled].any() and not array[~filled].any()
        assert own.spans == all_rows.spans
        assert own.loss_tokens == all_rows.loss_tokens == all_rows.batch.loss_mask.sum()
        assert (own.positions, own.padded_positions) == (all_rows.positions, all_rows.padded_positions)
    values = [[branch.advantages for branch in trunk.branches] for trunk in trunks]
    packed = mini_batches.MiniBatch(list(range(len(trunks))), trunks, part)
    for micro, array in zip(part, mini_batches.placed(packed, values), strict=True):
        np.testing.assert_array_equal(array, micro.batch.advantages)


def test_another_mask_counts_its_tokens_in_numbers_that_json_takes(trunks):
    """As shaping and selection set it; the count goes into the ledger, and so into checkpoints."""
    packed = mini_batches.MiniBatch(list(range(len(trunks))), trunks, pack(trunks, tokens=1000, pad_id=PAD))
    masks = [[np.arange(len(branch.token_ids)) % 2 == 0 for branch in trunk.branches] for trunk in trunks]
    mini_batches.fill([packed], "loss_mask", masks)
    assert sum(m.loss_tokens for m in packed.micros) == sum(mask.sum() for of_trunk in masks for mask in of_trunk)
    assert all(type(m.loss_tokens) is int and m.loss_tokens == m.batch.loss_mask.sum() for m in packed.micros)


@pytest.mark.parametrize("tokens", [1, 10_000])
def test_branches_do_not_overlap_and_the_rest_is_empty(trunks, tokens):
    for micro in pack(trunks, tokens=tokens, pad_id=PAD):
        batch, covered = micro.batch, np.zeros(micro.batch.loss_mask.shape, int)
        for placed in micro.spans:
            covered[placed.where] += 1
            segment = batch.rows.segment[placed.where]
            assert segment[0] > 0 and (segment == segment[0]).all()
        assert covered.max() == 1
        np.testing.assert_array_equal(batch.loss_mask, covered == 1)
        np.testing.assert_array_equal(batch.rows.segment > 0, covered == 1)
        for array in (batch.weights, batch.advantages, batch.old_logprobs, batch.sampler_logprobs):
            assert not array[covered == 0].any()
        assert (batch.rows.branch_ids[covered == 0] == PAD).all()
        for row in range(len(batch.loss_mask)):
            segments = [batch.rows.segment[p.where][0] for p in micro.spans if p.row == row]
            assert len(set(segments)) == len(segments), "two branches of a row would see one another"


def test_trunks_are_cut_after_their_largest_fork_and_share_a_row(trunks):
    (micro,) = pack(trunks, tokens=10_000, pad_id=PAD)
    assert len(micro.batch.rows.trunk_ids) == 1
    largest = [12, 3, 40, 1, 17]
    assert (micro.batch.rows.trunk_segment > 0).sum() == sum(largest)
    assert sorted(np.bincount(micro.batch.rows.trunk_segment[0])[1:]) == sorted(largest)
    assert micro.positions == sum(largest) + sum(len(b.token_ids) for trunk in trunks for b in trunk.branches)
    assert micro.padded_positions == micro.batch.rows.trunk_ids.size + micro.batch.rows.branch_ids.size
    assert micro.padded_positions > micro.positions


def test_micro_batches_keep_to_their_tokens_and_to_the_shards(trunks):
    """Only a trunk that is too large with a single lane makes a micro-batch larger; one with more lanes is cut."""
    many = [training_trunk(seed, 20, [(20, 30)] * 4) for seed in range(21)]
    for shards in (1, 4):
        cut = pack(many, tokens=1000, shards=shards, pad_id=PAD)
        assert len(cut) > 2
        for micro in cut:
            assert micro.padded_positions == micro.batch.rows.trunk_ids.size + micro.batch.loss_mask.size <= 1000
            assert len(micro.batch.loss_mask) % shards == 0
    large = training_trunk(1, 40, [(30, 60)] * 8 + [(40, 7)])
    cut = pack([large], tokens=300, pad_id=PAD)
    assert len(cut) > 1 and all(micro.padded_positions <= 300 for micro in cut)
    assert sorted(p.branch for micro in cut for p in micro.spans) == list(range(9))
    assert all(len(micro.batch.rows.segment[0]) == 1 for micro in pack(trunks, tokens=1, pad_id=PAD))  # lanes


@pytest.mark.parametrize("tokens", [1, 200, 1000, 10_000])
def test_a_branch_lies_in_lanes_that_see_one_another(tokens):
    crossing = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        rows = [[(int(random.integers(1, 20)), int(random.integers(1, 150))) for _ in range(9)] for _ in range(3)]
        for micro in pack([training_trunk(seed, 20, row) for row in rows], tokens=tokens, pad_id=PAD):
            window = micro.batch.rows.window
            assert window is None or window.shape == (len(micro.batch.loss_mask), WINDOW)
            for row in range(len(micro.batch.loss_mask) if window is not None else 0):
                filled = (micro.batch.rows.segment[row] > 0).reshape(-1)
                assert filled[: filled.sum()].all(), "branches lie end to end"
            for placed in micro.spans:
                lanes = placed.where[1]
                assert lanes[-1] - lanes[0] < (1 if window is None else WINDOW)
                crossing += lanes[-1] > lanes[0]
    assert (crossing > 0) == (tokens >= 1000)


def test_rows_of_one_capacity_and_two_windows_keep_each_branch_in_sight():
    """Rows of fresh and of kept trunks are declared apart, and one mini-batch may take both."""
    settings = {"data.max_prompt_tokens": 128, "rollout.max_response_tokens": 128, "rollout.expected_tokens": 64}
    settings |= {"training.micro_batch_tokens": 477, "training.mini_batch_rollouts": 16}
    config = load_config("configs/methods/prefix_rl.yaml", [f"{name}={value}" for name, value in settings.items()])
    shapes = declared_rows(config, 1, 1e-4)
    assert {shape.window for shape in shapes if shape.capacity == 64} == {1, 3}
    crossing = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        forks, lengths = [], []
        for prompt, base in random.integers(64, 129, (2, 2)).tolist():
            depths = np.repeat(random.integers(0, base, 3), 4)
            forks.append((prompt + depths).tolist())
            lengths.append([int(min(128 - depth, 1 + random.exponential(40))) for depth in depths])
        for rows, shape in plan_rows(forks, lengths, shapes, key_cost=1e-4):
            for trunk, branch, start in (placed for row in rows for placed in row.branches):
                lanes = (start + lengths[trunk][branch] - 1) // shape.capacity - start // shape.capacity
                assert lanes < shape.window
                crossing += lanes > 0
    assert crossing


@pytest.mark.parametrize(
    ("lengths", "tokens", "lanes"),
    [([1000], 1100, (1, 1024)), ([1000, 24], 2000, (1, 1024)), ([2049, 2000, 500], 10_000, (2, 3072))],
)
def test_long_branches_and_those_alone_in_a_row_do_not_cross_lanes(lengths, tokens, lanes):
    """With smaller lanes each token would score about half more positions."""
    (micro,) = pack([training_trunk(1, 20, [(20, length) for length in lengths])], tokens=tokens, pad_id=PAD)
    assert micro.batch.rows.window is None
    assert micro.batch.loss_mask.shape == (1, *lanes)


def test_full_rows_are_filled_to_the_last_lane():
    """The harness's branching batch: more than nine tenths of its positions are useful."""
    trunk = training_trunk(1, 320, [(320 - length, length) for length in (236, 213, 190, 52) for _ in range(16)])
    micros = pack([trunk], tokens=5120, pad_id=PAD)
    assert sum(m.positions for m in micros) / sum(m.padded_positions for m in micros) > 0.9
    assert all(m.padded_positions <= 5120 for m in micros)


def test_a_declared_shape_is_that_of_every_micro_batch():
    """As supervised fine-tuning needs: demonstrations of any length and number, one compiled program."""
    shapes = set()
    for count in range(1, 20):
        trunks = [training_trunk(seed, 1 + seed % 12, [(1 + seed % 12, 1 + seed)]) for seed in range(count)]
        cut = pack(trunks, shapes=[RowShape(4, 16, 1, 24)], pad_id=PAD)
        assert len(cut) <= -(-count // 4)
        shapes |= {(m.batch.rows.trunk_ids.shape, m.batch.loss_mask.shape) for m in cut}
    assert shapes == {((4, 16), (4, 1, 24))}


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
@pytest.mark.parametrize("tokens", [1, 1000])
def test_weights_and_denominator_make_the_mean_of_the_whole_mini_batch(aggregation, expected, tokens):
    trunks = [training_trunk(1, 4, [(4, 2), (2, 1)]), training_trunk(2, 3, [(3, 3)])]
    values = iter(range(1, 7))
    for trunk in trunks:
        for branch in trunk.branches:
            branch.advantages = np.array([next(values) for _ in branch.token_ids], np.float32)
    total = 0.0
    for micro in pack(trunks, tokens=tokens, pad_id=PAD, aggregation=aggregation):
        total += (micro.batch.advantages * micro.batch.weights * micro.batch.loss_mask).sum()
    assert total / aggregation_denominator(counted_tokens(trunks), aggregation, norm_length=10) == pytest.approx(
        expected
    )


def test_no_trunks_give_no_micro_batches():
    assert pack([], tokens=4, pad_id=PAD) == []
