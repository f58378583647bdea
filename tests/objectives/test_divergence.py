"""The k-estimators of KL(π ‖ π_ref): reference numbers, their identities, and bounded extremes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.divergence import bounded_log_ratio, kl_k1, kl_k2, kl_k3, sequence_log_ratios

POLICY = np.array([[-0.2, -1.5, -0.5, -1.6], [-0.02, -3.4, -0.7, -0.4]])
REFERENCE = np.array([[-0.1, -2.0, -0.5, -1.2], [-0.05, -3.0, -0.9, -0.4]])


def test_match_verl():
    """Vectors of verl's `kl_penalty` (torch, float64)."""
    np.testing.assert_allclose(kl_k1(POLICY, REFERENCE), [[-0.1, 0.5, 0.0, -0.4], [0.03, -0.4, 0.2, 0.0]], atol=1e-6)
    np.testing.assert_allclose(
        kl_k2(POLICY, REFERENCE), [[0.005, 0.125, 0.0, 0.08], [0.00045, 0.08, 0.02, 0.0]], atol=1e-6
    )
    np.testing.assert_allclose(
        kl_k3(POLICY, REFERENCE),
        [[0.00517091807, 0.10653065971, 0.0, 0.09182469764], [0.00044553355, 0.09182469764, 0.01873075308, 0.0]],
        atol=1e-6,
    )


@pytest.mark.parametrize("estimator", [kl_k1, kl_k3])
def test_unbiased_estimators_have_the_divergence_as_expectation(estimator):
    policy, reference = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    exact = np.sum(policy * np.log(policy / reference))
    np.testing.assert_allclose(np.sum(policy * estimator(np.log(policy), np.log(reference))), exact, rtol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "slope"), [(kl_k1, "none"), (kl_k2, "of KL(policy, reference)"), (kl_k3, "of KL(reference, policy)")]
)
def test_the_mean_gradient_of_each_estimator_over_the_policys_own_tokens(estimator, slope):
    """The tokens are drawn, so that their probabilities have no gradient: k1 in a loss pulls nowhere."""
    logits, reference = jnp.array([0.4, -0.3, 1.1]), jnp.log(jnp.array([0.2, 0.2, 0.6]))
    drawn = jax.nn.softmax(logits)
    found = jax.grad(lambda x: jnp.sum(drawn * estimator(jax.nn.log_softmax(x), reference)))(logits)
    exact = {
        "none": lambda x: 0.0 * x.sum(),
        "of KL(policy, reference)": lambda x: jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - reference)),
        "of KL(reference, policy)": lambda x: jnp.sum(jnp.exp(reference) * (reference - jax.nn.log_softmax(x))),
    }[slope]
    np.testing.assert_allclose(found, jax.grad(exact)(logits), atol=1e-6)


def test_k3_is_never_negative_and_finite_for_disjoint_policies():
    gap = np.array([-1000.0, -1.0, -1e-3, 1e-3, 1.0, 1000.0])
    values = kl_k3(gap, np.zeros(6))
    assert np.isfinite(values).all() and (np.asarray(values) > 0).all()
    assert np.isfinite(jax.vmap(jax.grad(kl_k3))(jnp.asarray(gap, jnp.float32), jnp.zeros(6))).all()


def test_log_ratio_bound_leaves_the_normal_range_and_its_gradient_alone():
    gap = jnp.array([-jnp.inf, -25.0, -19.0, 0.0, 19.0, 25.0, jnp.inf])
    np.testing.assert_array_equal(bounded_log_ratio(gap, jnp.zeros(7)), [-20.0, -20.0, -19.0, 0.0, 19.0, 20.0, 20.0])
    slopes = jax.vmap(jax.grad(bounded_log_ratio))(gap, jnp.zeros(7))
    np.testing.assert_array_equal(slopes, [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0])


def test_sequence_log_ratios_are_bounded_means_over_the_tokens_of_the_mask():
    now, old = np.array([[-1.0, -2.0, -9.0], [-1.0, 0.0, 0.0], [np.nan, 0.0, 0.0]]), np.zeros((3, 3))
    old[1, 0] = -100.0
    mask = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(sequence_log_ratios(now, old, mask), [-1.5, 20.0, 0.0])
