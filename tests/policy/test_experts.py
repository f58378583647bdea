"""Routed experts against a loop over all experts, values and gradients."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy.experts import ExpertChoice, Kernels, apply_experts, routed

U, X, C, E, F = 23, 6, 2, 8, 12  # tokens, experts, experts of a token, width, columns
CLOSE = dict(rtol=1e-5, atol=1e-5)


def material():
    draw = np.random.default_rng(0).standard_normal
    kernels = Kernels(*(draw(s).astype(np.float32) / 3 for s in ((X, E, F), (X, E, F), (X, F, E))))
    logits = draw((U, X)).astype(np.float32)
    logits[:, 4] -= 20  # an expert without a token
    return draw((U, E)).astype(np.float32), logits, kernels


def looped(x, logits, kernels, experts, normalised):
    """Every expert on every token, weighted; an expert that was not chosen has weight 0."""
    probabilities = jax.nn.softmax(logits)
    chosen = (experts[..., None] == jnp.arange(X).reshape(1, 1, X)).any(axis=1)
    weights = jnp.where(chosen, probabilities, 0)
    if normalised:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    total = jnp.zeros_like(x)
    for n in range(X):
        inner = jax.nn.silu(x @ kernels.gate[n]) * (x @ kernels.up[n])
        total = total + weights[:, n : n + 1] * (inner @ kernels.down[n])
    return total


@partial(jax.jit, static_argnums=0)
def with_slopes(function, readout, *inputs):
    """The function's value, and the gradients of its product with ``readout``."""
    value, pull = jax.vjp(function, *inputs)
    return value, pull(readout)


@pytest.mark.parametrize("normalised", [True, False])
def test_experts_equal_a_loop_over_all_of_them_with_its_gradients(normalised):
    x, logits, kernels = material()
    experts = np.argsort(-logits, axis=-1)[:, :C]
    ours = lambda x, logits, kernels: apply_experts(
        x, routed(logits, C, normalised=normalised), kernels, activation="silu"
    )
    theirs = lambda *inputs: looped(*inputs, experts, normalised)
    readout = np.random.default_rng(1).standard_normal((U, E)).astype(np.float32)
    with jax.default_matmul_precision("highest"):
        found, expected = (with_slopes(function, readout, x, logits, kernels) for function in (ours, theirs))
    assert all(np.abs(leaf).max() > 0.1 for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), found, expected)


def test_a_given_choice_has_its_own_weights_and_the_gradients_of_its_logits():
    x, logits, kernels = material()
    given = np.argsort(logits, axis=-1)[:, 1 : 1 + C]  # not what the router prefers
    ours = lambda logits: apply_experts(
        x, routed(logits, C, normalised=True, experts=given.astype(np.uint8)), kernels, activation="silu"
    )
    theirs = lambda logits: looped(x, logits, kernels, given, True)
    readout = np.random.default_rng(1).standard_normal((U, E)).astype(np.float32)
    found, expected = (with_slopes(f, readout, logits) for f in (ours, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), found, expected)


def test_parts_of_the_experts_add_up_to_all_of_them():
    x, logits, kernels = material()
    apply = jax.jit(partial(apply_experts, activation="silu"))
    choice = jax.jit(partial(routed, count=C, normalised=True))(logits)
    whole = apply(x, choice, kernels)
    halves = [apply(x, choice, Kernels(*(k[at : at + 3] for k in kernels)), first=at) for at in (0, 3)]
    assert all(np.abs(half).max() > 0.1 for half in halves)
    np.testing.assert_allclose(sum(halves), whole, **CLOSE)


def test_all_tokens_may_choose_the_same_experts():
    x, _, kernels = material()
    choice = ExpertChoice(np.broadcast_to(np.array([2, 0], np.int32), (U, C)), np.full((U, C), 0.5, np.float32))
    silu = lambda x: x / (1 + np.exp(-x))
    only = lambda n: (silu(x @ kernels.gate[n]) * (x @ kernels.up[n])) @ kernels.down[n]
    found = jax.jit(partial(apply_experts, activation="silu"))(x, choice, kernels)
    np.testing.assert_allclose(found, (only(2) + only(0)) / 2, **CLOSE)
