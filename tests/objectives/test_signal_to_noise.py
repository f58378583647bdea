"""Signal and noise of gradients: by hand, against the textbook formulas, and unbiased over many seeded experiments."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.objectives.signal_to_noise import (
    aimed_signal,
    count_sketch,
    inner_products,
    oracle_cosine,
    signal_and_noise,
)

# Two parameters: g is (3, 1) or (1, -1), each with probability 1/2. E g = (2, 0), Cov g = [[1, 1], [1, 1]].
MEAN, TRACE = np.array([2.0, 0.0]), 2.0


def draws(experiments: int, repeats: int, seed: int = 0) -> np.ndarray:
    heads = np.random.default_rng(seed).integers(0, 2, (experiments, repeats, 1))
    return np.where(heads, np.array([3.0, 1.0]), np.array([1.0, -1.0]))


def test_three_repeats_by_hand():
    vectors = np.array([[3.0, 1.0], [1.0, -1.0], [3.0, 1.0]])
    # Pairs: <1,2> = 2, <1,3> = 10, <2,3> = 2, so 14 / 3. Squares: 10, 2, 10, so 22 / 3.
    signal, noise = signal_and_noise(inner_products(vectors, vectors))
    assert signal == pytest.approx(14 / 3) and noise == pytest.approx(8 / 3)


def test_equals_the_mean_less_the_trace_of_the_sample_covariance():
    vectors = np.random.default_rng(1).standard_normal((7, 5)) + 1
    covariance = np.cov(vectors, rowvar=False)
    signal, noise = signal_and_noise(inner_products(vectors, vectors))
    assert noise == pytest.approx(np.trace(covariance))
    assert signal == pytest.approx(np.sum(vectors.mean(axis=0) ** 2) - np.trace(covariance) / 7)


def test_signal_and_noise_of_two_parameters_are_unbiased():
    """10,000 experiments of four repeats: the means lie within four standard errors, and these are small."""
    found = np.array([signal_and_noise(inner_products(g, g)) for g in draws(10_000, 4)])
    errors = found.std(axis=0) / np.sqrt(len(found))
    assert errors.max() < 0.03
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - [MEAN @ MEAN, TRACE]), 4 * errors)


def test_the_signal_toward_a_noisy_oracle_is_unbiased():
    """E o = (1, 1) with noise in both coordinates: <E g, E o>² = 4. The plain square would be above it by far."""
    rng, total, plain, n = np.random.default_rng(2), [], [], 10_000
    fixed = np.array([[1.0, 1.0], [1.0, 1.0]])  # gives the denominator ‖E o‖² = 2
    for vectors in draws(n, 4, seed=3):
        parts = 1 + rng.standard_normal((3, 2))
        crossed = inner_products(vectors, parts)
        total.append(2 * aimed_signal(crossed, np.full((3, 3), 2.0)))
        plain.append(crossed.mean() ** 2)
    assert inner_products(fixed, fixed)[0, 1] == 2
    assert abs(np.mean(total) - 4) < 4 * np.std(total) / np.sqrt(n) < 0.35
    assert np.mean(plain) > 5


def test_cosine_of_known_directions():
    vectors, parts = np.tile([3.0, 4.0], (3, 1)), np.tile([2.0, 0.0], (2, 1))
    crossed, oracle = inner_products(vectors, parts), inner_products(parts, parts)
    products = inner_products(vectors, vectors)
    assert oracle_cosine(crossed, oracle, products) == pytest.approx(0.6)
    assert aimed_signal(crossed, oracle) == pytest.approx(9)
    assert np.isnan(oracle_cosine(crossed, -oracle, products)) and np.isnan(aimed_signal(crossed, -oracle))


def test_copies_of_a_repeat_are_no_pair_of_independent_gradients():
    """Counts (2, 1, 0): only the pair of repeats 0 and 1 counts. A draw of one repeat alone says nothing."""
    vectors = np.array([[3.0, 1.0], [1.0, -1.0], [9.0, 9.0]])
    products = inner_products(vectors, vectors)
    signal, noise = signal_and_noise(products, np.array([[2, 1, 0], [3, 0, 0], [1, 1, 1]]))
    assert signal[0] == pytest.approx(2) and noise[0] == pytest.approx((2 * 10 + 2) / 3 - 2)
    assert np.isnan(signal[1])
    assert (signal[2], noise[2]) == pytest.approx(tuple(map(float, signal_and_noise(products))))
    crossed, oracle = products[:, :2], products[:2, :2]
    aimed = aimed_signal(crossed, oracle, np.array([[2, 1, 0]]))
    # Pairs of different repeats and parts: 2 (g0·o0)(g1·o1) + 2 (g0·o1)(g1·o0), of 2 · 2; ‖E o‖² = 2.
    assert aimed[0] == pytest.approx((10 * 2 + 2 * 2) / 2 / 2)


def test_bootstrap_intervals_hold_the_true_ratio_about_as_often_as_they_say():
    """SNR 2 from 24 repeats, and 0.2 with an unequal spread: coverage of the 95 % interval over 300 experiments."""
    rng = np.random.default_rng(5)
    for mean in (np.array([2.0, 0.0]), np.array([0.2, 0.6])):
        true, held = mean @ mean / 2.0, 0
        for _ in range(300):
            vectors = mean + rng.standard_normal((24, 2))
            counts = rng.multinomial(24, np.full(24, 1 / 24), size=400)
            signal, noise = signal_and_noise(inner_products(vectors, vectors), counts)
            low, high = np.percentile(signal / noise, [2.5, 97.5])
            held += low <= true <= high
        assert 0.88 <= held / 300 <= 0.99


def test_a_sketch_keeps_inner_products_on_average():
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 500)).astype(np.float32)
    found = []
    for _ in range(2000):
        places, signs = rng.integers(0, 64, 500), rng.choice([-1.0, 1.0], 500)
        found.append(count_sketch(x, places, signs, 64) @ count_sketch(y, places, signs, 64))
    bound = np.sqrt(2 * (x @ x) * (y @ y) / 64)
    assert abs(np.mean(found) - x @ y) < 4 * bound / np.sqrt(2000)
    assert np.std(found) < bound
