"""pass@k against exact fractions and enumeration, and at sizes where binomials overflow."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from fr3e_jax.objectives.pass_at_k import avg_at_k, pass_at_k


@pytest.mark.parametrize(("n", "k"), [(1, 1), (8, 1), (8, 3), (16, 8), (16, 16), (1024, 1), (1024, 256), (1024, 1024)])
def test_equals_the_binomial_formula_in_exact_fractions(n, k):
    exact = [float(1 - Fraction(comb(n - c, k), comb(n, k))) for c in range(n + 1)]
    np.testing.assert_allclose(pass_at_k(n, np.arange(n + 1), k), exact, rtol=1e-10)


def test_is_the_mean_success_of_all_subsets():
    correct = [1, 0, 0, 1, 0]
    success = [max(subset) for subset in itertools.combinations(correct, 3)]
    np.testing.assert_allclose(pass_at_k(5, sum(correct), 3), np.mean(success))


def test_is_exact_where_failure_or_success_is_impossible():
    assert pass_at_k(1024, 0, 1024) == 0.0
    assert pass_at_k(10, 3, 8) == 1.0  # k > n - c
    assert pass_at_k(10, 10, 1) == 1.0


def test_pass_at_one_is_the_average():
    correct = np.random.default_rng(0).integers(0, 2, size=(7, 16))
    np.testing.assert_allclose(pass_at_k(16, correct.sum(axis=-1), 1), avg_at_k(correct), rtol=1e-12)
    np.testing.assert_array_equal(avg_at_k(np.array([[True, False, False, True], [0, 0, 0, 0]])), [0.5, 0.0])


def test_impossible_requests_say_what_to_change():
    with pytest.raises(ValueError, match="pass@16 cannot be estimated from 8 samples: draw more"):
        pass_at_k(8, 4, 16)
    with pytest.raises(ValueError, match="pass@0"):
        pass_at_k(8, 4, 0)
    with pytest.raises(ValueError, match=r"found 2\.\.9 correct samples, expected 0\.\.8"):
        pass_at_k(8, np.array([2, 9]), 4)
