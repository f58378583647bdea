"""The layout of a call: chosen by the caps of its branches, within the memory of the settings."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.rollouts import layout
from fr3e_jax.rollouts.expected_lengths import ExpectedLengths
from fr3e_jax.rollouts.layout import Layout, estimated_cost, fitted_layout, lane_steps

FULL = Layout(16, 17)


def fitted(limits, full=FULL, trunk=96, ring=128, shards=1, expected=None):
    return fitted_layout(full, limits, trunk, ring, shards, expected, 16)


def test_branches_of_equal_length_that_fill_the_lanes_keep_the_settings():
    assert fitted([[77] * 16] * 16) == FULL, "another layout would copy each trunk three times"
    assert fitted([[77] * 17] * 256) == FULL, "17 branches take five turns in slots of four lanes"


def test_uneven_branches_take_turns_in_half_the_lanes():
    three_depths = [[20] * 4 + [40] * 4 + [60] * 4] * 16
    assert fitted(three_depths) == Layout(32, 4)
    assert estimated_cost(Layout(32, 4), three_depths) < 0.6 * estimated_cost(FULL, three_depths)


def test_the_next_trunks_come_into_slots_of_four_lanes():
    assert fitted([[1024] * 16] * 128, Layout(16, 16), trunk=24, ring=1024) == Layout(64, 4)
    assert fitted([[1024] * 16] * 128, Layout(16, 16), trunk=1024, ring=1024) == Layout(16, 16), "four times the trunks"


@pytest.mark.parametrize(("prompts", "most"), [(16, 0.4), (32, 0.4), (128, 0.4)])
def test_a_long_tail_of_lengths_takes_turns_in_fewer_lanes(prompts, most):
    """As many responses as lanes, of a mean of an eighth of the cap; and several rounds of them."""
    full, cap, mean = Layout(16, 16), 1024, 128
    limits = [[cap] * 16] * prompts
    drawn = np.random.default_rng(3).exponential(mean, (prompts, 16))
    lengths = np.minimum(cap, 1 + drawn.astype(int)).tolist()
    found = fitted(limits, full, 24, 1024, expected=ExpectedLengths(mean, cap))
    rounds = [slice(start, start + 16) for start in range(0, prompts, 16)]
    before = sum(lane_steps(limits[part], lengths[part], full, 16) for part in rounds)
    assert lane_steps(limits, lengths, found, 16) <= most * before


def test_expected_lengths_near_the_cap_or_a_small_gain_keep_the_layout_of_the_caps():
    near = ExpectedLengths(72, 77)
    assert fitted([[77] * 16] * 16, expected=near) == fitted([[77] * 16] * 16)
    returns = [[d] * 4 + [d // 2 + 1] * 4 + [d // 3 + 1] * 4 for d in range(10, 74, 4)]
    assert fitted(returns, expected=near) == fitted(returns), "a quarter less would be another set of programs"
    few = [[50] * 4 + [30] * 4 + [10] * 4] * 2
    assert fitted(few, expected=near) == fitted(few), "most lanes are empty, but not for long"


def test_branches_go_on_from_the_tokens_that_their_response_has():
    expected = ExpectedLengths(150, 200)  # evenly between 100 and 200
    whole, rest = expected.of([[200] * 500, [80] * 500])
    assert min(whole) >= 100 and np.mean(whole) == pytest.approx(150, abs=1)
    assert min(rest) >= 1 and max(rest) <= 80 and np.mean(rest) == pytest.approx(40, abs=1), "120 tokens came before"
    assert expected.of([[200] * 500])[0] == whole, "the same each time"


def test_estimated_steps_are_those_of_branches_as_long_as_their_caps():
    assert estimated_cost(Layout(2, 2), [[32, 32], [32]]) == 32 * (4 + layout.STEP_COST)
    one_copy = 32 * (4 + layout.STEP_COST) + layout.COPY_COST
    assert estimated_cost(Layout(2, 2), [[32, 32, 32, 32]]) == one_copy


@pytest.mark.parametrize("expected", [None, ExpectedLengths(6, 60)])
@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.parametrize(
    ("full", "trunk", "ring"), [(FULL, 24, 128), (Layout(8, 16), 1024, 4096), (Layout(4, 64), 4096, 64)]
)
def test_no_layout_needs_much_more_memory_or_more_lanes_than_the_settings_or_breaks_the_mesh(
    full, trunk, ring, shards, expected
):
    full = Layout(-(-full.slots // shards) * shards, full.lanes)
    for limits in ([[9]], [[60] * 16] * 400, [[5] * 8 + [60] * 8] * 5, [[60] * 200]):
        found = fitted(limits, full, trunk, ring, shards, expected)
        assert found.total <= full.total and found.slots % shards == 0 and found.slots
        assert found.positions(trunk, ring) <= full.positions(trunk, ring) * 17 / 16
