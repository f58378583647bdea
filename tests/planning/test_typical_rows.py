"""The time of training by the rows of a step, and the mini-batch that is not scored."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.learning.row_shapes import RowShape
from fr3e_jax.planning.compile import estimated_plan
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.topology import parse_topology
from fr3e_jax.planning.typical_rows import with_rows_of_a_step
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
