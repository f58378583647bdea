"""The learning rate at chosen steps, decay of matrices only, and clipping, read off AdamW's own updates.

Under a constant gradient Adam's direction is the gradient's sign, so the size of a step is the learning rate.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.programs.optimizer_programs import make_optimizer

DEFAULTS = dict(
    learning_rate=0.1, warmup_updates=0, decay_updates=0, beta1=0.9, beta2=0.99, epsilon=1e-12, weight_decay=0.0,
    max_grad_norm=0.0,
)  # fmt: skip


def updates(gradients, *, params=None, **settings):
    """The update of each gradient; the parameters stay the same."""
    optimizer = make_optimizer(**DEFAULTS | settings)
    params = jax.tree.map(jnp.zeros_like, gradients[0]) if params is None else params
    step, state, results = jax.jit(optimizer.update), jax.jit(optimizer.init)(params), []
    for gradient in gradients:
        update, state = step(gradient, state, params)
        results.append(jax.tree.map(np.asarray, update))
    return results


def rates(count, **settings):
    return [-float(update[0]) for update in updates([jnp.ones(1)] * count, **settings)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.1, 0.1]),
        (dict(warmup_updates=4), [0.025, 0.05, 0.075, 0.1, 0.1]),
        (dict(warmup_updates=1), [0.1, 0.1]),
        (dict(decay_updates=4), [0.1, 0.05 + 0.05 * 0.5**0.5, 0.05, 0.05 - 0.05 * 0.5**0.5, 0, 0]),
        (dict(warmup_updates=2, decay_updates=6), [0.05, 0.1, 0.1, 0.05 + 0.05 * 0.5**0.5, 0.05]),
    ],
)
def test_learning_rate_of_each_update_follows_warm_up_and_decay(settings, expected):
    np.testing.assert_allclose(rates(len(expected), **settings), expected, rtol=1e-4, atol=1e-7)


def test_weight_decay_reaches_only_matrices():
    """update = -rate (direction + decay * parameter); biases and norms have one dimension."""
    params = {"matrix": jnp.full((2, 3), 5.0), "vector": jnp.full(3, 5.0)}
    (update,) = updates([jax.tree.map(jnp.ones_like, params)], params=params, weight_decay=0.2)
    np.testing.assert_allclose(update["matrix"], -0.1 * (1 + 0.2 * 5.0), rtol=1e-5)
    np.testing.assert_allclose(update["vector"], -0.1, rtol=1e-5)


def test_gradients_are_clipped_by_their_global_norm():
    """Norms 10 and 1: clipped to 1, both weigh the same in Adam's means; unclipped, the second is almost lost."""
    gradients = [{"a": jnp.array([6.0]), "b": jnp.array([8.0])}, {"a": jnp.array([0.6]), "b": jnp.array([-0.8])}]

    def second_update(g1, g2):
        mean = (0.1 * g2 + 0.9 * 0.1 * g1) / (1 - 0.9**2)
        square = (0.01 * g2**2 + 0.99 * 0.01 * g1**2) / (1 - 0.99**2)
        return -0.1 * mean / square**0.5

    clipped, free = updates(gradients, max_grad_norm=1.0)[1], updates(gradients)[1]
    np.testing.assert_allclose(
        [clipped["a"][0], clipped["b"][0]], [second_update(0.6, 0.6), second_update(0.8, -0.8)], 1e-4
    )
    np.testing.assert_allclose([free["a"][0], free["b"][0]], [second_update(6, 0.6), second_update(8, -0.8)], 1e-4)


def test_betas_and_epsilon_reach_adam():
    """First update: g / (|g| + epsilon); the second mixes with beta1 and beta2."""
    first, second = updates([jnp.array([2.0]), jnp.array([-3.0])], beta1=0.5, beta2=0.8, epsilon=1.0)
    np.testing.assert_allclose(first, [-0.1 * 2 / 3], rtol=1e-5)
    mean, square = (0.5 * -3 + 0.25 * 2) / 0.75, (0.2 * 9 + 0.16 * 4) / 0.36
    np.testing.assert_allclose(second, [-0.1 * mean / (square**0.5 + 1)], rtol=1e-5, atol=1e-7)
