"""A budget of rollouts is conserved, bounded, and spent where the value of Knapsack RL grows most."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fr3e_jax.objectives.allocation import knapsack_rollouts


def value(rates, counts) -> float:
    return sum((1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2 for p, n in zip(rates, counts, strict=True))


@pytest.mark.parametrize("rates", [[0.1, 0.5, 0.9], [0.02, 0.3, 0.3], [0.0, 0.4, 1.0], [1 / 3, 0.05, 0.6]])
@pytest.mark.parametrize("total", [6, 11, 20])
def test_no_other_division_has_a_larger_value(rates, total):
    counts = knapsack_rollouts(rates, total, least=2, most=12)
    assert counts.sum() == total and counts.min() >= 2 and counts.max() <= 12
    best = max(value(rates, each) for each in product(range(2, 13), repeat=3) if sum(each) == total)
    assert value(rates, counts) == pytest.approx(best, abs=1e-12)


def test_seldom_solved_prompts_get_most_and_solved_ones_least():
    counts = knapsack_rollouts([1.0, 0.5, 0.05], 48, least=2, most=128)
    assert counts[0] == 2 < counts[1] < counts[2]


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_equal_rates_are_met_equally(rate):
    assert knapsack_rollouts([rate] * 5, 42, least=2, most=32).tolist() == [9, 9, 8, 8, 8]


@pytest.mark.parametrize(("rates", "total", "expected"), [([], 0, []), ([0.2], 7, [7]), ([0.5, 1.0], 8, [6, 2])])
def test_of_few_prompts(rates, total, expected):
    assert knapsack_rollouts(rates, total, least=2, most=8).tolist() == expected


@pytest.mark.parametrize("total", [3, 17])
def test_a_total_out_of_bounds_is_refused(total):
    with pytest.raises(ValueError, match=rf"{total} rollouts .* expected a total from 4 to 16"):
        knapsack_rollouts([0.5, 0.5], total, least=2, most=8)


@pytest.mark.parametrize("rate", [-0.1, 1.1, np.nan])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="expected numbers from 0 to 1"):
        knapsack_rollouts([0.5, rate], 8, least=2, most=8)
