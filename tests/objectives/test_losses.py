"""The clipped surrogate and its aggregations: verl's numbers, gradients, masks, independence of the batch's split."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.losses import (
    aggregation_denominator,
    clipped_surrogate,
    entropy_bonus,
    token_divisors,
    truncated_importance_weight,
)
from fr3e_jax.objectives.reductions import masked_mean, masked_sum

OLD = np.array([[-0.1, -2.0, -0.5, -1.2], [-0.05, -3.0, -0.9, -0.4]], np.float32)
NEW = np.array([[0.2, -1.5, -0.5, -1.6], [-0.02, -1.2, -0.7, -0.4]], np.float32)
ADVANTAGES = np.array([[1.5] * 4, [-1.5] * 4], np.float32)
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
CLIP = dict(epsilon_low=0.2, epsilon_high=0.28)
MODES = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm"]


def token_mean_loss(policy_logprobs, **options):
    losses, _ = clipped_surrogate(policy_logprobs, OLD, ADVANTAGES, MASK, **options)
    return jnp.where(MASK, losses, 0.0).sum() / MASK.sum()


class TestClippedSurrogate:
    def test_matches_verl_with_dual_clip(self):
        """Vectors of verl's `compute_policy_loss_vanilla`, token mean, c = 3 (torch, float64)."""
        loss, gradient = jax.value_and_grad(lambda new: token_mean_loss(new, **CLIP, dual_clip=3.0))(NEW)
        np.testing.assert_allclose(loss, 0.21890083844529595, rtol=1e-6)
        expected = [[0, 0, -0.21428571, -0.14364001], [0.22081169, 0, 0.26172916, 0]]
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)
        _, stats = clipped_surrogate(NEW, OLD, ADVANTAGES, MASK, **CLIP, dual_clip=3.0)
        clipped = stats["clipped_low"] | stats["clipped_high"]
        np.testing.assert_allclose(masked_mean(clipped, MASK), 0.2857142853, rtol=1e-6)
        np.testing.assert_allclose(masked_mean(stats["clipped_dual"], MASK), 0.1428571426, rtol=1e-6)

    def test_statistics_say_which_side_was_clipped(self):
        ratio = np.array([0.7, 0.7, 1.0, 1.3, 1.3, 4.0, 9.0], np.float32)
        advantages = np.array([1, -1, 1, 1, -1, -1, -1], np.float32)
        mask = np.array([1, 1, 1, 1, 1, 1, 0])
        _, stats = clipped_surrogate(np.log(ratio), np.zeros(7), advantages, mask, **CLIP, dual_clip=3.0)
        np.testing.assert_allclose(stats["ratio"], [0.7, 0.7, 1.0, 1.3, 1.3, 4.0, 1.0], rtol=1e-6)
        np.testing.assert_array_equal(stats["clipped_low"], [0, 1, 0, 0, 0, 0, 0])
        np.testing.assert_array_equal(stats["clipped_high"], [0, 0, 0, 1, 0, 0, 0])
        np.testing.assert_array_equal(stats["clipped_dual"], [0, 0, 0, 0, 0, 1, 0])

    def test_hand_computed_losses_of_each_case(self):
        ratio = np.array([0.7, 0.7, 1.3, 1.3, 4.0])
        advantages = np.array([2.0, -2.0, 2.0, -2.0, -2.0])
        losses, _ = clipped_surrogate(np.log(ratio), np.zeros(5), advantages, np.ones(5), **CLIP, dual_clip=3.0)
        np.testing.assert_allclose(losses, [-1.4, 1.6, -2.56, 2.6, 6.0], rtol=1e-6)
        losses, stats = clipped_surrogate(np.log(ratio), np.zeros(5), advantages, np.ones(5), **CLIP)
        np.testing.assert_allclose(losses[-1], 8.0, rtol=1e-6)
        assert not stats["clipped_dual"].any()

    def test_on_policy_gradient_is_plain_policy_gradient(self):
        """At π = π_old, ∂L/∂log π_t = −Â_t: clipping does not act on the first mini-batch."""
        gradient = jax.grad(lambda new: clipped_surrogate(new, OLD, ADVANTAGES, MASK, **CLIP, dual_clip=3.0)[0].sum())(
            jnp.asarray(OLD)
        )
        np.testing.assert_array_equal(gradient, -ADVANTAGES * MASK)

    def test_garbage_outside_the_mask_reaches_neither_loss_nor_gradient(self):
        def loss(new, old, advantages):
            return clipped_surrogate(new, old, advantages, MASK, **CLIP)[0].sum()

        dirty = [np.where(MASK, x, bad) for x, bad in ((NEW, -np.inf), (OLD, -np.inf), (ADVANTAGES, np.nan))]
        value, gradient = jax.value_and_grad(loss)(*dirty)
        clean_value, clean_gradient = jax.value_and_grad(loss)(NEW, OLD, ADVANTAGES)
        assert value == clean_value
        np.testing.assert_array_equal(gradient, clean_gradient)

    def test_extreme_ratios_stay_finite(self):
        new = jnp.array([0.0, 0.0, -jnp.inf, -1e4])
        old = jnp.array([-1e4, -1e4, -1.0, 0.0])
        advantages = jnp.array([1.0, -1.0, -1.0, 1.0])

        def loss(new):
            return clipped_surrogate(new, old, advantages, jnp.ones(4), **CLIP)[0].sum()

        value, gradient = jax.value_and_grad(loss)(new)
        assert np.isfinite(value) and np.isfinite(gradient).all()

    def test_half_precision_logprobs_are_widened_first(self):
        losses, stats = clipped_surrogate(
            jnp.asarray(NEW, jnp.bfloat16), jnp.asarray(OLD, jnp.bfloat16), ADVANTAGES, MASK, **CLIP
        )
        assert losses.dtype == stats["ratio"].dtype == jnp.float32

    def test_dual_clip_below_one_is_refused(self):
        with pytest.raises(ValueError, match=r"dual_clip=0.5 .* expected a number above 1, or 0"):
            token_mean_loss(NEW, **CLIP, dual_clip=0.5)


class TestTruncatedImportanceWeight:
    def test_is_the_ratio_up_to_the_cap(self):
        weight = truncated_importance_weight(np.log([0.5, 0.5, 0.5, 1.0]), np.log([0.5, 0.4, 0.1, 0.0 + 1e-30]), 2.0)
        np.testing.assert_allclose(weight, [1.0, 1.25, 2.0, 2.0], rtol=1e-6)

    def test_carries_no_gradient(self):
        gradient = jax.grad(lambda x: truncated_importance_weight(x, jnp.zeros(2), 2.0).sum())(jnp.array([0.1, 5.0]))
        np.testing.assert_array_equal(gradient, [0.0, 0.0])

    def test_refuses_a_cap_that_removes_everything(self):
        with pytest.raises(ValueError, match="cap=0.0 would remove every token"):
            truncated_importance_weight(NEW, OLD, 0.0)


def test_entropy_bonus_lowers_the_loss_of_uncertain_response_tokens():
    bonus = entropy_bonus(np.array([0.5, 2.0, np.nan]), np.array([1, 1, 0]), coefficient=0.1)
    np.testing.assert_allclose(bonus, [-0.05, -0.2, 0.0], rtol=1e-6)


def aggregate(losses, mask, mode: str, **options) -> tuple[float, float]:
    """(Σ ℓ / divisor, denominator) of sequences in rows, as the trainer puts them together."""
    counts = np.asarray(mask, bool).sum(axis=-1)
    weighted = np.asarray(losses) / token_divisors(counts, mode)[:, None]
    return masked_sum(weighted, mask), aggregation_denominator(counts, mode, **options)


class TestAggregation:
    losses = np.arange(8.0).reshape(2, 4)  # 0+1+2+3 = 6 and 4+5+6 = 15 under MASK

    def test_matches_verl(self):
        """verl's `agg_loss`; its seq-mean-token-sum-norm (5.25) leaves out the mean over the two sequences."""
        expected = {
            "token_mean": 3.0,
            "seq_mean_token_sum": 10.5,
            "seq_mean_token_mean": 3.25,
            "token_sum_norm": 5.25 / 2,
        }
        for mode, number in expected.items():
            total, count = aggregate(self.losses, MASK, mode, norm_length=4)
            np.testing.assert_allclose(total / count, number, rtol=1e-6)

    @pytest.mark.parametrize("mode", MODES)
    def test_any_split_into_micro_batches_gives_the_same_loss(self, mode):
        rng = np.random.default_rng(0)
        losses, mask = rng.normal(size=(6, 5)), rng.integers(0, 2, size=(6, 5))
        whole = aggregate(losses, mask, mode, norm_length=16)
        for cut in range(1, 6):
            halves = [aggregate(losses[s], mask[s], mode, norm_length=16) for s in (slice(cut), slice(cut, None))]
            np.testing.assert_allclose(sum(h[0] for h in halves), whole[0], rtol=1e-5)
            assert sum(h[1] for h in halves) == whole[1]

    @pytest.mark.parametrize("mode", MODES)
    def test_empty_sequences_do_not_count(self, mode):
        padded_losses = np.concatenate([self.losses, np.full((3, 4), np.nan)])
        padded_mask = np.concatenate([MASK, np.zeros((3, 4), int)])
        padded = aggregate(padded_losses, padded_mask, mode, norm_length=4)
        np.testing.assert_array_equal(padded, aggregate(self.losses, MASK, mode, norm_length=4))

    @pytest.mark.parametrize("mode", MODES)
    def test_nothing_at_all_is_zero_over_zero(self, mode):
        np.testing.assert_array_equal(aggregate(np.full((2, 3), np.inf), np.zeros((2, 3)), mode, norm_length=4), [0, 0])

    @pytest.mark.parametrize("mode", MODES)
    def test_the_denominator_follows_from_the_token_counts_alone(self, mode):
        expected = {"token_mean": 7, "token_sum_norm": 2 * 16}.get(mode, 2)
        assert aggregation_denominator(np.array([4, 3, 0]), mode, norm_length=16) == expected

    @pytest.mark.parametrize("mode", MODES)
    def test_divisors_of_traced_counts_equal_those_of_numpy_arrays(self, mode):
        counts = np.array([4, 3, 0])
        traced = jax.jit(lambda counts: token_divisors(counts, mode))(counts)
        np.testing.assert_array_equal(traced, token_divisors(counts, mode))

    def test_one_token_response(self):
        for mode in MODES:
            total, count = aggregate(np.array([[2.0, 9.0]]), np.array([[1, 0]]), mode, norm_length=1)
            assert total / count == 2.0

    def test_messages_say_what_to_change(self):
        with pytest.raises(ValueError, match="token_sum_norm divides by a fixed length: pass norm_length="):
            aggregate(self.losses, MASK, "token_sum_norm")
        with pytest.raises(ValueError, match="'sum'; expected token_mean, seq_mean_token_mean"):
            aggregate(self.losses, MASK, "sum")
