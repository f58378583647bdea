"""The layout of a call: chosen by the caps of its branches, within the memory of the settings."""

from __future__ import annotations

import pytest

from fr3e_jax.rollouts import layout
from fr3e_jax.rollouts.layout import Layout, estimated_cost, fitted_layout

FULL = Layout(16, 17)


def fitted(limits, full=FULL, trunk=96, ring=128, shards=1):
    return fitted_layout(full, limits, trunk, ring, shards)


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


def test_estimated_steps_are_those_of_branches_as_long_as_their_caps():
    assert estimated_cost(Layout(2, 2), [[32, 32], [32]]) == 32 * (4 + layout.STEP_COST)
    one_copy = 32 * (4 + layout.STEP_COST) + layout.COPY_COST
    assert estimated_cost(Layout(2, 2), [[32, 32, 32, 32]]) == one_copy


@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.parametrize(
    ("full", "trunk", "ring"), [(FULL, 24, 128), (Layout(8, 16), 1024, 4096), (Layout(4, 64), 4096, 64)]
)
def test_no_layout_needs_much_more_memory_or_more_lanes_than_the_settings_or_breaks_the_mesh(full, trunk, ring, shards):
    full = Layout(-(-full.slots // shards) * shards, full.lanes)
    for limits in ([[9]], [[60] * 16] * 400, [[5] * 8 + [60] * 8] * 5, [[60] * 200]):
        found = fitted(limits, full, trunk, ring, shards)
        assert found.total <= full.total and found.slots % shards == 0 and found.slots
        assert found.positions(trunk, ring) <= full.positions(trunk, ring) * 17 / 16
