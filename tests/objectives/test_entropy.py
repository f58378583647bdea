"""Entropy, branching factor, log-probs and update magnitude of next-token distributions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.entropy import (
    branching_factor,
    log_perplexity,
    token_entropy,
    token_logprobs,
    update_magnitude,
)

INF = float("inf")


def random_logits(*shape: int, seed: int = 0) -> np.ndarray:
    return 3 * np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class TestTokenEntropy:
    def test_hand_computed_numbers(self):
        logits = np.log([[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]])
        expected = [1.5 * np.log(2), -(0.9 * np.log(0.9) + 0.1 * np.log(0.05))]
        np.testing.assert_allclose(token_entropy(logits), expected, rtol=1e-6)

    def test_uniform_is_log_vocabulary_and_certain_is_zero(self):
        np.testing.assert_allclose(token_entropy(np.zeros(7)), np.log(7), rtol=1e-6)
        assert token_entropy(np.array([-INF, 2.0, -INF])) == 0.0
        assert token_entropy(np.array([0.0, 200.0])) == 0.0

    def test_impossible_tokens_are_as_if_absent(self):
        logits = random_logits(5)
        with_impossible = np.insert(logits, [0, 2, 5], -INF)
        np.testing.assert_allclose(token_entropy(with_impossible), token_entropy(logits), rtol=1e-6)

    def test_gradient_is_minus_p_times_surprise_over_entropy(self):
        """∂H/∂z_v = −π_v (log π_v + H), and 0 for an impossible token."""
        logits = jnp.array([1.0, -INF, 0.5, -2.0])
        probs = np.exp(np.array([1.0, -INF, 0.5, -2.0]))
        probs /= probs.sum()
        surprise = np.log(np.where(probs > 0, probs, 1.0))
        entropy = -(probs * surprise).sum()
        np.testing.assert_allclose(jax.grad(token_entropy)(logits), -probs * (surprise + entropy), atol=1e-7)

    def test_shift_of_logits_changes_nothing_even_far_out(self):
        logits = np.array([1.0, 2.0, 4.0])
        np.testing.assert_allclose(token_entropy(logits + 1e4), token_entropy(logits), rtol=1e-6)

    def test_half_precision_logits_give_a_float32_entropy(self):
        logits = jnp.asarray(random_logits(3, 50), jnp.bfloat16)
        entropy = token_entropy(logits)
        assert entropy.dtype == jnp.float32
        np.testing.assert_array_equal(entropy, token_entropy(logits.astype(jnp.float32)))


class TestBranchingFactor:
    @pytest.mark.parametrize(
        ("probs", "mass", "expected"),
        [
            ([0.6, 0.3, 0.08, 0.02], 0.95, 3),
            ([0.6, 0.3, 0.08, 0.02], 0.9, 2),
            ([0.02, 0.08, 0.6, 0.3], 0.5, 1),
            ([1.0, 0.0, 0.0, 0.0], 0.95, 1),
            ([0.5, 0.5, 0.0, 0.0], 1.0, 2),
        ],
    )
    def test_hand_counted_sets(self, probs, mass, expected):
        with np.errstate(divide="ignore"):
            assert branching_factor(np.log(probs), mass) == expected

    @pytest.mark.parametrize("percent", [50, 95])
    @pytest.mark.parametrize("size", [1, 6, 10, 20, 1000])
    def test_uniform_distribution_needs_exactly_the_share(self, size, percent):
        assert branching_factor(np.zeros(size), percent / 100) == -(-percent * size // 100)


class TestTokenLogprobs:
    def test_is_the_log_softmax_of_the_drawn_token(self):
        logits = np.log([[0.2, 0.8], [0.5, 0.5]])
        np.testing.assert_allclose(token_logprobs(logits, np.array([1, 0])), np.log([0.8, 0.5]), rtol=1e-6)

    def test_exponentials_over_the_vocabulary_sum_to_one(self):
        logits = np.broadcast_to(random_logits(6), (6, 6))
        np.testing.assert_allclose(np.exp(token_logprobs(logits, np.arange(6))).sum(), 1.0, rtol=1e-6)

    def test_impossible_token_has_minus_infinity_and_a_finite_gradient(self):
        logits = jnp.array([0.0, -INF, 1.0])
        assert token_logprobs(logits, jnp.int32(1)) == -INF
        assert np.isfinite(jax.grad(token_logprobs)(logits, jnp.int32(1))).all()
        gradient = jax.grad(token_logprobs)(logits, jnp.int32(0))
        p = 1 / (1 + np.e)
        np.testing.assert_allclose(gradient, [1 - p, 0.0, -(1 - p)], rtol=1e-6)


def test_log_perplexity_is_the_mean_surprise_of_response_tokens_only():
    logprobs = np.array([[-1.0, -3.0, np.nan], [-INF, 0.0, 0.0]])
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(log_perplexity(logprobs, mask), [2.0, 0.0])


class TestUpdateMagnitude:
    def test_equals_the_frobenius_norm_of_the_head_gradient(self):
        """Against the matrix that the formula avoids: ∂ log π(o) / ∂W with z = W h."""
        rng = np.random.default_rng(1)
        head, hidden = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)
        gradient = jax.grad(lambda w: token_logprobs(w @ hidden, jnp.int32(2)))(jnp.asarray(head))
        found = update_magnitude(head @ hidden, np.int32(2), np.linalg.norm(hidden))
        np.testing.assert_allclose(found, np.linalg.norm(gradient), rtol=1e-5)

    def test_hand_computed_and_nearly_certain_tokens(self):
        logits = np.log([[0.5, 0.25, 0.25]])
        np.testing.assert_allclose(
            update_magnitude(logits, np.array([0]), np.array([2.0])), [2 * 0.375**0.5], rtol=1e-6
        )
        surprise = 1e-6  # 1 − π(o) cancels in float32; the two residuals are ±π of the other token
        logits = np.array([0.0, np.log(surprise)])
        np.testing.assert_allclose(update_magnitude(logits, np.int32(0), np.float32(1)), 2**0.5 * surprise, rtol=1e-4)

    def test_certain_token_asks_for_nothing_with_finite_gradient(self):
        logits = jnp.array([3.0, -INF])
        value, gradient = jax.value_and_grad(update_magnitude)(logits, jnp.int32(0), jnp.float32(5.0))
        assert value == 0.0
        np.testing.assert_array_equal(gradient, [0.0, 0.0])
