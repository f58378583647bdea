"""Bootstrap intervals against plain loops and exact probabilities."""

import itertools

import numpy as np
import pytest

from fr3e_jax.studies.analysis import bootstrap
from fr3e_jax.studies.analysis.bootstrap import (
    interval_of_mean,
    interval_over_problems,
    means_of_resamples,
    percentiles,
)


def test_resampled_means_are_those_of_a_plain_loop_over_the_same_draws(monkeypatch):
    values = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    taken = np.random.default_rng(7).integers(0, 3, (50, 3))
    expected = [[np.mean([values[i, place] for i in row]) for place in (0, 1)] for row in taken]
    np.testing.assert_allclose(means_of_resamples(values, draws=50, seed=7), expected, rtol=1e-12)
    monkeypatch.setattr(bootstrap, "_DRAWN_AT_ONCE", 30)  # ten resamples in a piece: the same draws
    np.testing.assert_allclose(means_of_resamples(values, draws=50, seed=7), expected, rtol=1e-12)


def test_the_interval_of_three_values_is_that_of_all_27_resamples():
    """Each resample of three values has probability 1/27, so the 2.5 % quantile is the smallest triple."""
    values = [0.0, 1.0, 10.0]
    exact = sorted(np.mean(row) for row in itertools.product(values, repeat=3))
    assert interval_of_mean(values) == (exact[0], exact[-1]) == (0.0, 10.0)
    low, high = percentiles(means_of_resamples(np.array(values), draws=20_000), level=0.5)
    assert exact[6] <= low <= exact[7] and exact[19] <= high <= exact[20]


def test_one_value_has_no_interval_and_none_is_refused():
    assert interval_of_mean([0.3]) is None and interval_of_mean([]) is None
    with pytest.raises(ValueError, match="found no values"):
        means_of_resamples(np.zeros(0))


def test_problems_are_drawn_within_their_set_and_sets_weigh_the_same():
    first, second = np.array([1.0, 0.0, -1.0, 1.0]), np.array([0.5, 0.5])
    draws = [means_of_resamples(first, seed=2), means_of_resamples(second, seed=3)]
    low, high = np.percentile((draws[0] + draws[1]) / 2, [2.5, 97.5])
    assert interval_over_problems([first, second], seed=2) == (low, high)
    assert low > (-1 + 0.5) / 2 and high <= 0.75
    assert interval_over_problems([np.array([1.0])]) is None
