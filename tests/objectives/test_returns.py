"""GAE against its sum, and the critic's loss."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

from fr3e_jax.objectives import returns
from fr3e_jax.objectives.returns import clipped_value_losses

generalised_advantages = partial(returns.generalised_advantages, gamma=1.0, lam=1.0)


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
