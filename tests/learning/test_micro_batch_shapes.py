"""Rows declared before the run: few shapes, the same every time, and every branch lies in one of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.learning.micro_batch_shapes import MOST_SHAPES, chosen_shapes, declared_rows, expected_mini_batches
from fr3e_jax.learning.row_planner import PlannedBatch, Row, micro_batches, plan_rows
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.rollouts.expected_lengths import expected_lengths

RECIPES = {
    "demo": (1, 3e-3, []),
    "fr3e_qwen2.5_7b": (4, 2e-5, ["training.mini_batch_rollouts=64", "rollout.max_response_tokens=4096"]),
    "grpo_pp_qwen2.5_7b": (16, 2e-5, ["training.mini_batch_rollouts=512"]),
}


def assert_complete(plan, forks, lengths, shards=1):
    """Every branch lies once in a row, within its trunk part, and beside no other one."""
    placed = sorted((t, b) for rows, _ in plan for row in rows for t, b, _ in row.branches)
    assert placed == [(t, b) for t, row in enumerate(forks) for b in range(len(row))]
    for rows, shape in plan:
        assert 0 < len(rows) <= shape.rows and shape.rows % shards == 0
        for row in rows:
            assert sum(row.sizes) == row.filled <= shape.trunk_size and len(set(row.trunks)) == len(row.trunks)
            assert all(forks[t][b] <= row.sizes[row.trunks.index(t)] for t, b, _ in row.branches)
            spans = sorted((start, start + lengths[t][b]) for t, b, start in row.branches)
            assert spans[-1][1] <= shape.room
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
            for start, end in spans:
                assert (end - 1) // shape.capacity - start // shape.capacity < shape.window


@pytest.mark.parametrize("recipe", RECIPES)
def test_mini_batches_of_expected_lengths_lie_in_declared_rows_alone(recipe):
    shards, key_cost, overrides = RECIPES[recipe]
    config = load_config(recipe, overrides, training=False)
    rows = declared_rows(config, shards, key_cost)
    assert 1 <= len(set(rows)) == len(rows) <= MOST_SHAPES + 2 * (config.returns.size > 0)
    assert declared_rows(config, shards, key_cost) == rows, "a resumed run has the same rows"
    kinds = ("fresh", "kept") if config.returns.size else ("fresh",)
    for forks, lengths in (sizes for kind in kinds for sizes in list(expected_mini_batches(config, 8, 256, kind))[6:]):
        plan = plan_rows(forks, lengths, rows, shards=shards, key_cost=key_cost)
        assert_complete(plan, forks, lengths, shards)
        assert {shape for _, shape in plan} <= {*rows}
        useful = sum(row.filled + row.tokens for micro, _ in plan for row in micro)
        assert useful > 0.6 * sum(shape.positions for _, shape in plan)


def test_continuations_alone_fill_declared_rows():
    """After a round of fresh prompts a run takes steps of nothing else. Two mixed depths of 16 bases of 240 tokens."""
    config = load_config("configs/experiments/order_16/return.yaml", [], training=False)
    forks = [[200] * 4 + [212] * 4] * 16
    lengths = [[60] * 4 + [48] * 4] * 16
    plan = plan_rows(forks, lengths, declared_rows(config, 1, 3e-3), key_cost=3e-3)
    useful = sum(row.filled + row.tokens for micro, _ in plan for row in micro)
    assert useful > 0.6 * sum(shape.positions for _, shape in plan)


def test_fresh_prompts_have_rows_of_their_own_where_bases_are_kept():
    """A prompt alone is a short trunk: in rows for continuations half of the work would be attention to padding."""
    returns, fresh = (
        load_config(f"configs/experiments/order_16/{name}.yaml", [], training=False) for name in ("return", "grpo")
    )
    batches = [PlannedBatch(*batch) for batch in expected_mini_batches(fresh, 4, 128, "fresh")]
    work, least = (
        sum(batch.cheapest(declared_rows(config, 1, 3e-3), 3e-3, 64)[0] for batch in batches)
        for config in (returns, fresh)
    )
    assert work < 1.1 * least


@pytest.mark.parametrize("seed", range(8))
def test_any_branches_are_complete_in_any_declared_rows(seed):
    """Those that no declared row holds, too: they get rows of one more shape."""
    random = np.random.default_rng(seed)
    forks = [random.integers(1, 60, random.integers(1, 9)).tolist() for _ in range(12)]
    lengths = [random.integers(1, 90, len(row)).tolist() for row in forks]
    crossing = [RowShape(n, size, lanes, 32, 3) for n, size, lanes in [(2, 64, 4), (4, 64, 4), (2, 24, 6), (2, 48, 3)]]
    long = [RowShape(n, size, 3, lane) for n, size, lane in [(2, 64, 96), (6, 64, 64), (2, 24, 96), (2, 24, 16)]]
    for shapes in (crossing, long, long[2:], crossing[:1], [RowShape(2, 16, 1, 16)], ()):
        plan = plan_rows(forks, lengths, shapes, shards=2, key_cost=1e-3)
        assert_complete(plan, forks, lengths, 2)
        assert len({shape for _, shape in plan} - {*shapes}) <= 1


def test_a_branch_that_no_declared_row_holds_gets_a_row_as_long():
    shapes = [RowShape(4, 64, 2, 32, 3)]
    ((rows, additional),) = plan_rows([[10, 70], [20]], [[40, 5], [300]], shapes, shards=4)
    assert additional == RowShape(4, 96, 1, 384)
    assert sorted(b for row in rows for b in row.branches) == [(0, 0, 300), (0, 1, 340), (1, 0, 0)], "all share it"


def test_branches_near_the_start_of_their_trunk_have_rows_with_a_short_trunk_part():
    """They first fill what branches far along the trunk leave in their rows."""
    shapes = [RowShape(1, 320, 4, 128, 3), RowShape(1, 64, 4, 128, 3)]
    plan = plan_rows([[300, 300, 50, 50, 50, 50]], [[200, 200, 100, 100, 100, 100]], shapes, key_cost=1e-2)
    (far, far_shape), (near, near_shape) = plan
    assert (far_shape, near_shape) == tuple(shapes)
    assert sorted(b for _, b, _ in far[0].branches) == [0, 1, 2] and far[0].sizes == [300]
    assert sorted(b for _, b, _ in near[0].branches) == [3, 4, 5] and near[0].sizes == [50]


def test_chosen_rows_are_nearly_full_and_within_the_positions_of_a_micro_batch():
    """A branching batch: four anchors with 16 branches each, and prompts with short responses beside it."""
    family = [length for length in (236, 213, 190, 52) for _ in range(16)]
    forks, lengths = [[320 - n for n in family], *[[20] * 8] * 4], [family, *[[60] * 8] * 4]
    shapes = chosen_shapes([(forks, lengths)], (320, 256), tokens=5120, key_cost=3e-4)
    plan = plan_rows(forks, lengths, shapes, key_cost=3e-4)
    assert all(shape.positions <= 5120 and shape.window == 3 for shape in shapes)
    useful = sum(row.filled + row.tokens for rows, _ in plan for row in rows)
    assert useful > 0.85 * sum(shape.positions for _, shape in plan)


@pytest.mark.parametrize(("size", "positions"), [(260, 320), (5000, 5120), (9000, 9216), (17407, 17408)])
def test_a_long_trunk_leaves_less_than_1024_positions_empty(size, positions):
    shapes = chosen_shapes([([[size]], [[64]])], (size, 64), tokens=1)
    assert shapes[0].trunk_size == positions < size + min(size / 4, 1024)


def test_rows_are_cut_into_the_largest_full_micro_batches_and_then_the_smallest():

    def counts(rows, *shapes):
        row = RowShape(1, 16, 1, 16)
        plan = micro_batches({row: [Row(row)] * rows}, {row: [row._replace(rows=count) for count in shapes]})
        assert sum(len(members) for members, _ in plan) == rows
        return [shape.rows for _, shape in plan]

    assert [counts(rows, 1, 4) for rows in (1, 7, 8)] == [[1], [4, 1, 1, 1], [4, 4]]
    assert (counts(5, 2, 3), counts(1, 2, 3), counts(0, 2)) == ([3, 2], [2], [])


@pytest.mark.parametrize(("mean", "cap"), [(1, 1), (2, 8), (2048, 16384), (0, 20), (72, 77), (77, 77), (100, 77)])
def test_expected_lengths_have_the_mean_and_keep_the_cap(mean, cap):
    lengths = expected_lengths(mean, cap)
    assert 1 <= lengths.min() and lengths.max() <= cap
    assert (lengths[1:] >= lengths[:-1]).all()
    wanted = min(mean or max(cap // 2, 1), cap)
    assert abs(lengths.mean() - wanted) <= max(0.15 * wanted, 1)
