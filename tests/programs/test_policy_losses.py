"""Options of the policy loss against the papers' formulas, differentiated by other means."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.train_programs import LossSettings, TrainRows, policy_token_losses

LENGTHS = [4, 1, 6, 3]
N, T = len(LENGTHS), 6
MASK = np.arange(T) < np.array(LENGTHS)[:, None]
PLAIN = LossSettings(epsilon_low=0.2, epsilon_high=0.3)


def rows(**fields) -> TrainRows:
    """Four responses of one to six tokens, some updates after they were scored."""
    random = np.random.default_rng(7)
    old = np.where(MASK, -np.abs(random.normal(size=(N, T))), 0).astype(np.float32)
    values = {
        "rows": Rows(*[None] * 8),
        "loss_mask": MASK,
        "weights": MASK.astype(np.float32),
        "advantages": np.where(MASK, np.array([[1.0], [-0.5], [-2.0], [0.7]]), 0).astype(np.float32),
        "old_logprobs": old,
        "sampler_logprobs": old,
    }
    return TrainRows(**(values | fields))


BATCH = rows()
NOW = (BATCH.old_logprobs + np.where(MASK, np.random.default_rng(8).normal(size=(N, T)) * 0.2, 0)).astype(np.float32)
ENTROPIES = np.abs(np.random.default_rng(9).normal(size=(N, T))).astype(np.float32)


def loss_and_slope(batch: TrainRows, settings: LossSettings, weights):
    def loss(logprobs):
        losses, sums = policy_token_losses(batch, logprobs, ENTROPIES, settings)
        return jnp.sum(jnp.where(MASK, losses * weights, 0.0)), sums

    (value, sums), slope = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(NOW))
    return float(value), np.asarray(slope), jax.device_get(sums)


def differences(function, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central finite differences of a float64 function."""
    slope = np.zeros(at.shape)
    for index in np.ndindex(at.shape):
        moved = [at.astype(np.float64) for _ in range(2)]
        moved[0][index] += step
        moved[1][index] -= step
        slope[index] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return slope


def sequence_log_ratios(logprobs) -> np.ndarray:
    return (np.where(MASK, logprobs - BATCH.old_logprobs, 0).sum(1) / LENGTHS)[:, None] * np.ones((1, T))


@pytest.mark.parametrize("low, high", [(0.2, 0.3), (0.01, 0.02)])
def test_gspo_is_the_gradient_of_its_sequence_objective(low, high):
    """GSPO, eq. 5 and 7: -mean_i min(s_i A_i, clip(s_i) A_i), s_i = (pi(o_i) / pi_old(o_i))^(1/|o_i|)."""

    def published(logprobs):
        s = np.exp(sequence_log_ratios(logprobs)[:, 0])
        a = BATCH.advantages[:, 0]
        return -np.minimum(s * a, np.clip(s, 1 - low, 1 + high) * a).mean()

    batch = rows(sequence_log_ratios=sequence_log_ratios(NOW).astype(np.float32))
    settings = LossSettings(epsilon_low=low, epsilon_high=high, sequence_ratio=True)
    weights = MASK / np.array(LENGTHS)[:, None] / N
    value, slope, sums = loss_and_slope(batch, settings, weights)
    assert value == pytest.approx(published(NOW), rel=1e-5)
    np.testing.assert_allclose(slope, differences(published, NOW), atol=1e-6)
    clipped = sums["clipped_low"] + sums["clipped_high"]
    assert clipped in (0, *np.cumsum(LENGTHS)) or clipped <= sum(LENGTHS)
    assert (clipped > 0) == (low < 0.1), "whole responses are clipped"


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_divergence_in_the_loss(estimator):
    reference = np.where(MASK, BATCH.old_logprobs - 0.3, np.nan).astype(np.float32)  # nan: padding is not read

    def published(logprobs):
        gap = (logprobs - reference)[MASK]
        value = {"k1": gap, "k2": gap**2 / 2, "k3": np.exp(-gap) + gap - 1}[estimator]
        return 0.25 * value.sum()

    batch = rows(reference_logprobs=reference)
    plain, slope_plain, _ = loss_and_slope(batch, PLAIN, MASK)
    value, slope, sums = loss_and_slope(batch, replace(PLAIN, kl_coefficient=0.25, kl_estimator=estimator), MASK)
    assert value - plain == pytest.approx(published(NOW), rel=1e-4)
    np.testing.assert_allclose((slope - slope_plain)[MASK], differences(published, NOW)[MASK], atol=2e-6)
    assert sums["kl"] == pytest.approx(published(NOW) / 0.25, rel=1e-4)


def test_kl_cov_is_unclipped_and_penalises_the_selected_tokens():
    penalised = MASK & (np.arange(T) == 0)

    def published(logprobs):
        ratio = logprobs - BATCH.old_logprobs
        loss = -np.exp(ratio) * BATCH.advantages + 0.5 * np.abs(ratio) * penalised
        return loss[MASK].sum()

    batch = rows(penalised=penalised)
    value, slope, sums = loss_and_slope(batch, replace(PLAIN, epsilon_low=0.01, covariance_penalty=0.5), MASK)
    assert value == pytest.approx(published(NOW), rel=1e-5)
    np.testing.assert_allclose(slope, differences(published, NOW) * MASK, atol=1e-5)
    assert "clipped_low" not in sums


def test_entropy_advantage_raises_advantages_by_at_most_a_share_of_them():
    """Cheng et al. 2025, eq. 5-7, with the entropies of the same pass; the ratio is a metric."""
    shaped = BATCH.advantages + np.minimum(0.4 * ENTROPIES, np.abs(BATCH.advantages) / 2) * MASK
    value, slope, sums = loss_and_slope(BATCH, replace(PLAIN, entropy_advantage=(0.4, 2.0)), MASK)
    expected, expected_slope, _ = loss_and_slope(rows(advantages=shaped), PLAIN, MASK)
    assert value == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-5)
    ratio = (shaped - BATCH.advantages) / np.where(MASK, np.abs(BATCH.advantages), 1)
    assert sums["entropy_advantage"] == pytest.approx(ratio.sum(), rel=1e-5)
