"""Divergences and advantages of a teacher, against sums over the vocabulary and finite differences."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from fr3e_jax.objectives.distillation import distillation_divergence, teacher_advantages

RNG = np.random.default_rng(0)
POLICY, TEACHER = RNG.normal(size=(2, 5, 7)).astype(np.float32)


def distribution(logits):
    weights = np.exp(np.float64(logits))
    return weights / weights.sum(axis=-1, keepdims=True)


def kl(p, q):
    return (p * np.log(p / q)).sum(axis=-1)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_divergence_is_that_of_gkd(beta):
    policy, teacher = distribution(POLICY), distribution(TEACHER)
    mixture = beta * teacher + (1 - beta) * policy
    expected = {0.0: kl(teacher, policy), 1.0: kl(policy, teacher)}.get(
        beta, beta * kl(teacher, mixture) + (1 - beta) * kl(policy, mixture)
    )
    np.testing.assert_allclose(distillation_divergence(POLICY, TEACHER, beta=beta), expected, rtol=1e-5)
    shifted = TEACHER + np.float32(3)  # the same distribution
    np.testing.assert_allclose(distillation_divergence(POLICY, shifted, beta=beta), expected, rtol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_teacher_equal_to_the_policy_teaches_nothing(beta):
    total = lambda logits: distillation_divergence(logits, POLICY, beta=beta).sum()
    value, gradient = jax.value_and_grad(total)(POLICY)
    rounding = 0 if beta in (0, 1) else 1e-7  # of the mixture
    assert abs(value) <= 10 * rounding
    np.testing.assert_allclose(gradient, np.zeros_like(POLICY), atol=rounding)
    np.testing.assert_array_equal(teacher_advantages(POLICY, POLICY), np.zeros_like(POLICY))


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_gradient_is_that_of_finite_differences(beta):
    total = lambda logits: distillation_divergence(logits, TEACHER, beta=beta).sum()
    gradient = np.asarray(jax.grad(total)(POLICY))
    step = np.float32(1e-2)
    for at in [(0, 0), (2, 3), (4, 6)]:
        moved = np.zeros_like(POLICY)
        moved[at] = step
        np.testing.assert_allclose(
            (total(POLICY + moved) - total(POLICY - moved)) / (2 * step), gradient[at], atol=1e-3
        )


def test_tokens_that_one_of_them_cannot_draw_keep_everything_finite():
    policy, teacher = POLICY.copy(), TEACHER.copy()
    policy[:, 0], teacher[:, 1] = -np.inf, -np.inf
    total = lambda logits, beta: distillation_divergence(logits, teacher, beta=beta).sum()
    for beta in (0.0, 0.3, 1.0):
        value, gradient = jax.value_and_grad(total)(policy, beta)
        assert np.isfinite(value) and value > 0 and np.isfinite(gradient).all()
    with pytest.raises(ValueError, match="beta=1.5; expected 0"):
        distillation_divergence(policy, teacher, beta=1.5)


def test_advantages_are_samples_of_the_reverse_divergence_and_are_bounded():
    policy, teacher = np.log(distribution(POLICY)), np.log(distribution(TEACHER))
    advantages = np.asarray(teacher_advantages(policy.astype(np.float32), teacher.astype(np.float32)))
    np.testing.assert_allclose(-(np.exp(policy) * advantages).sum(-1), kl(np.exp(policy), np.exp(teacher)), rtol=1e-5)
    far = teacher_advantages(np.float32([-1.0]), np.float32([-50.0]))
    np.testing.assert_array_equal(far, np.float32([-20.0]))
