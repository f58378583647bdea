"""The times of training and decoding by the rows and caches of a step, and the mini-batch that is not scored."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.learning.row_shapes import RowShape
from fr3e_jax.planning.compile import estimated_plan
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.lane_use import CacheReads, LaneUse, columns_read, lane_use
from fr3e_jax.planning.topology import parse_topology
from fr3e_jax.planning.typical_rows import with_caches_of_a_step, with_rows_of_a_step
from fr3e_jax.planning.workload import Assumptions, seen_positions, step_amounts
from fr3e_jax.policy.architecture import PUBLISHED

V5P = parse_topology("v5p:4x4x4")


def recipe(*settings):
    return load_config("configs/fr3e_qwen2.5_32b.yaml", list(settings), training=False)


def test_positions_that_a_row_sees_are_its_trunk_and_a_window_of_lanes():
    """A trunk of 4 sees itself; 3 lanes of 2 see the trunk and two lanes each: (4 * 4 + 6 * (4 + 4)) / 10."""
    assert seen_positions(RowShape(7, 4, 3, 2, window=2)) == pytest.approx(6.4)
    assert seen_positions(RowShape(1, 4, 0, 2)) == 4


@pytest.fixture(scope="module")
def short():
    return step_amounts(recipe(), Assumptions(2048), 8)


def test_attention_takes_as_much_less_as_positions_see_fewer_others(short):
    estimator, a = Estimator(recipe(), PUBLISHED["qwen2.5-32b"], 64), PUBLISHED["qwen2.5-32b"]
    largest = seen_positions(RowShape(8, 17408, 1, 16384))
    products, attention = estimator.active_kernels, 2 * a.num_heads * a.head_dim * a.num_layers
    share = (products + attention * short.seen) / (products + attention * largest)
    assert short.seen < largest / 3 and 0.6 < share < 0.75
    for name in ("score", "accumulate", "decode"):
        plan = estimated_plan(name, estimator, V5P)
        found = with_rows_of_a_step(plan, estimator, short, V5P)
        expected = share if name != "decode" else 1
        assert found.flops == pytest.approx(plan.flops * expected, rel=1e-6)
        assert found.floor_seconds == pytest.approx(plan.floor_seconds * expected, rel=1e-6)


def test_first_mini_batch_is_not_scored_where_its_gradient_pass_gives_its_log_probs(short):
    assert short.updates == 4 and short.score_positions == pytest.approx(0.75 * short.padded_positions, rel=0.01)
    read = step_amounts(recipe("kl.coefficient=0.1", "kl.place=reward"), Assumptions(2048), 8)
    assert read.score_positions == pytest.approx(read.padded_positions, rel=0.01)
    single = step_amounts(recipe("training.mini_batch_rollouts=8192"), Assumptions(2048), 8)
    assert single.score_positions == single.score_seen == 0


def test_a_lane_reads_its_ring_block_by_block():
    """The mean over all columns in which a branch may begin."""
    blocks = lambda start, count: len({(start + n) % 64 // 8 for n in range(count)})
    for length in (1, 7, 8, 9, 30, 57, 60, 64):
        steps = [8 * blocks(start, filled) for start in range(64) for filled in range(1, length + 1)]
        assert columns_read(length, 64, 8) == sum(steps) / 64
    assert columns_read(300, 512) == 300 * 512, "a small ring is one block"


def test_short_responses_leave_most_of_the_caches_unread():
    """Whole ones read half of their rings and most of a block; trunks of explored ones end at their last fork."""
    whole, short = (lane_use(recipe(), 64, mean) for mean in (16384, 2048))
    assert whole.decode_reads.trunks == 1 and 0.5 + 1024 / 16384 < whole.decode_reads.rings < 0.5 + 2048 / 16384
    assert short.decode_reads.trunks == 1 and short.decode_reads.rings < 0.1
    assert short.explore_reads.trunks < 0.25 < 0.8 < whole.explore_reads.trunks < 1
    assert short.explore_reads.rings < 0.5 * whole.explore_reads.rings


def test_decode_steps_take_the_bytes_of_what_the_kernel_reads():
    use = LaneUse(1.0, 1.0, CacheReads(1.0, 0.1), CacheReads(0.25, 0.3))
    of = lambda *settings: Estimator(recipe(*settings), PUBLISHED["qwen2.5-32b"], 64)
    fused, plain = of("model.attention=pallas"), of("model.attention=xla")
    trunks, rings = fused.caches(explore=True)
    for name, spared in (("explore", 0.75 * trunks + 0.2 * rings), ("decode", 0.4 * fused.caches(False)[1])):
        plan = estimated_plan(name, fused, V5P)
        found = with_caches_of_a_step(plan, fused, use, V5P)
        assert plan.read_bytes - found.read_bytes == pytest.approx(64 * spared, rel=1e-6)
        assert found.floor_seconds == pytest.approx(found.read_bytes / V5P.chip.hbm_bandwidth)
        assert with_caches_of_a_step(estimated_plan(name, plain, V5P), plain, use, V5P).read_bytes > plan.read_bytes
    plan = estimated_plan("accumulate", fused, V5P)
    assert with_caches_of_a_step(plan, fused, use, V5P) is plan
