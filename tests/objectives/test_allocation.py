"""An exploration budget is conserved, bounded, and spent where the need is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fr3e_jax.objectives.allocation import divide_rollouts

NEEDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.9375, 1.0]), min_size=1, max_size=12)


@given(NEEDS, st.data())
def test_sum_bounds_and_order(needs, data):
    least, most = 2, data.draw(st.integers(2, 9))
    total = data.draw(st.integers(least * len(needs), most * len(needs)))
    counts = divide_rollouts(needs, total, least=least, most=most)
    assert counts.sum() == total and counts.min() >= least and counts.max() <= most
    for needed, count in zip(needs, counts, strict=True):
        for other, other_count in zip(needs, counts, strict=True):
            assert other_count >= count or other <= needed, "the needier has at least as many"
            assert abs(other_count - count) <= 1 or other != needed, "the same need, the same count but for a rest"


@pytest.mark.parametrize("need", [0.0, 0.3, 1.0])
def test_equal_needs_are_met_equally(need):
    assert divide_rollouts([need] * 5, 40, least=2, most=32).tolist() == [8] * 5


def test_shares_are_proportional_within_the_bounds():
    assert divide_rollouts([0.75, 0.25], 16, least=2, most=16).tolist() == [12, 4]
    assert divide_rollouts([0.75, 0.25], 16, least=2, most=10).tolist() == [10, 6]
    assert divide_rollouts([1.0, 0.0], 16, least=2, most=16).tolist() == [14, 2]


def test_of_nothing_is_nothing():
    assert divide_rollouts([], 0, least=2, most=8).tolist() == []


@pytest.mark.parametrize("total", [3, 17])
def test_a_total_out_of_bounds_is_refused(total):
    with pytest.raises(ValueError, match=rf"{total} rollouts .* expected a total from 4 to 16"):
        divide_rollouts([1.0, 1.0], total, least=2, most=8)


@pytest.mark.parametrize("need", [-0.1, np.nan])
def test_a_need_that_is_none_is_refused(need):
    with pytest.raises(ValueError, match="expected numbers that are not negative"):
        divide_rollouts([1.0, need], 8, least=2, most=8)
