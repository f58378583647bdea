"""Masked sums, means and deviations: hand-made numbers, the empty selection, and NaN where the mask is false."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.reductions import masked_mean, masked_std, masked_sum, safe_sqrt

X = np.array([[1.0, 2.0, 6.0], [5.0, 7.0, 9.0]])
MASK = np.array([[True, True, False], [False, True, True]])


def test_hand_computed_numbers():
    assert masked_sum(X, MASK) == 19.0
    np.testing.assert_array_equal(masked_mean(X, MASK, axis=-1), [1.5, 8.0])
    np.testing.assert_array_equal(masked_mean(X, MASK, axis=0, keepdims=True), [[1.0, 4.5, 9.0]])
    np.testing.assert_allclose(masked_std(X, MASK, -1), [0.5, 1.0])
    np.testing.assert_allclose(masked_std(X, MASK, -1, unbiased=True), [0.5 * 2**0.5, 2**0.5], rtol=1e-6)


def test_masking_equals_leaving_entries_out():
    np.testing.assert_allclose(masked_mean(X, MASK), np.mean(X[MASK]), rtol=1e-6)
    np.testing.assert_allclose(masked_std(X, MASK), np.std(X[MASK]), rtol=1e-6)
    np.testing.assert_allclose(masked_std(X, MASK, unbiased=True), np.std(X[MASK], ddof=1), rtol=1e-6)


def test_number_masks_count_every_non_zero_entry_once():
    np.testing.assert_array_equal(masked_mean(X, 3 * MASK.astype(np.float32), axis=-1), masked_mean(X, MASK, axis=-1))


@pytest.mark.parametrize("reduction", [masked_sum, masked_mean, masked_std])
def test_nothing_selected_is_zero_with_zero_gradient(reduction):
    value, gradient = jax.value_and_grad(lambda x: reduction(x, np.zeros(3, bool)))(jnp.array([1.0, jnp.nan, jnp.inf]))
    assert value == 0.0
    np.testing.assert_array_equal(gradient, [0.0, 0.0, 0.0])


@pytest.mark.parametrize("reduction", [masked_sum, masked_mean, masked_std])
def test_nan_and_infinity_outside_the_mask_reach_neither_value_nor_gradient(reduction):
    mask = np.array([True, True, False, False])
    clean = jax.value_and_grad(lambda x: reduction(x, mask))(jnp.array([1.0, 4.0, 0.0, 0.0]))
    dirty = jax.value_and_grad(lambda x: reduction(x, mask))(jnp.array([1.0, 4.0, jnp.nan, -jnp.inf]))
    np.testing.assert_array_equal(dirty[0], clean[0])
    np.testing.assert_array_equal(dirty[1], clean[1])
    assert np.all(clean[1][:2] != 0)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("x", [[3.0], [3.0, 3.0]])
def test_deviation_of_one_or_of_equal_entries_is_zero_with_finite_gradient(x, unbiased):
    x = jnp.array(x)
    value, gradient = jax.value_and_grad(lambda x: masked_std(x, jnp.ones_like(x), unbiased=unbiased))(x)
    assert value == 0.0
    np.testing.assert_array_equal(gradient, jnp.zeros_like(x))


def test_sums_are_float32_for_half_precision_input():
    ones = jnp.ones(1000, jnp.bfloat16)  # bfloat16 itself cannot count beyond 256
    assert masked_sum(ones, ones) == 1000.0


def test_safe_sqrt_has_a_finite_slope_at_zero():
    np.testing.assert_array_equal(safe_sqrt(np.array([-1.0, 0.0, 9.0])), [0.0, 0.0, 3.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(safe_sqrt))(jnp.array([0.0, 4.0])), [0.0, 0.25])
