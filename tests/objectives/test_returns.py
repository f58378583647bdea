"""GAE against its sum, and the critic's loss."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

from fr3e_jax.objectives import returns
from fr3e_jax.objectives.returns import clipped_value_losses

generalised_advantages = partial(returns.generalised_advantages, gamma=1.0, lam=1.0)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (1.0, 0.0)])
@pytest.mark.parametrize("side", ["right", "left"])
def test_equals_the_sum_over_later_tokens(gamma, lam, side):
    generator = np.random.default_rng(0)
    rewards, values = generator.standard_normal((2, 3, 8)).astype(np.float32)
    lengths = [8, 1, 5]
    mask = np.array([[t < n if side == "right" else t >= 8 - n for t in range(8)] for n in lengths])
    rewards, values = np.where(mask, rewards, np.nan), np.where(mask, values, np.inf)
    advantages, returns = generalised_advantages(rewards, values, mask, gamma=gamma, lam=lam)
    for row, inside in enumerate(mask):
        r, v = rewards[row, inside], np.append(values[row, inside], 0.0)
        deltas = r + gamma * v[1:] - v[:-1]
        expected = [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(r))) for t in range(len(r))]
        np.testing.assert_allclose(advantages[row, inside], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(returns[row, inside], expected + v[:-1], rtol=1e-5, atol=1e-6)
        assert not np.asarray(advantages)[row, ~inside].any() and not np.asarray(returns)[row, ~inside].any()


def test_without_discount_it_is_the_reward_less_the_value():
    rewards, values = np.array([[0.0, 0.0, 1.0]]), np.array([[0.2, 0.5, 0.9]])
    np.testing.assert_allclose(
        generalised_advantages(rewards, values, np.ones((1, 3)))[0], [[0.8, 0.5, 0.1]], rtol=1e-6
    )


def test_values_get_no_gradient_through_advantages():
    slope = jax.grad(lambda v: generalised_advantages(np.ones((1, 3)), v, np.ones((1, 3)))[0].sum())(np.ones((1, 3)))
    assert not slope.any()


def test_value_loss_is_the_larger_of_both():
    values, old, target = np.array([1.0, 1.0, 3.0, 9.0]), np.array([0.0, 1.0, 1.0, 9.0]), np.array([1.0, 0.0, 3.0, 0.0])
    mask = np.array([1, 1, 1, 0])
    np.testing.assert_allclose(
        clipped_value_losses(values, old, target, mask, clip=0.5), [0.125, 0.5, 1.125, 0], rtol=1e-6
    )
    np.testing.assert_allclose(clipped_value_losses(values, old, target, mask, clip=0.0), [0, 0.5, 0, 0], rtol=1e-6)
