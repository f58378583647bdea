"""Routed experts against a loop over all experts, values and gradients."""

from __future__ import annotations

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
        value, pull = jax.vjp(ours, x, logits, kernels)
        expected, expected_pull = jax.vjp(theirs, x, logits, kernels)
        np.testing.assert_allclose(value, expected, **CLOSE)
        for found, wanted in zip(jax.tree.leaves(pull(readout)), jax.tree.leaves(expected_pull(readout)), strict=True):
            assert np.abs(wanted).max() > 0.1
            np.testing.assert_allclose(found, wanted, **CLOSE)


def test_a_given_choice_has_its_own_weights_and_the_gradients_of_its_logits():
    x, logits, kernels = material()
    given = np.argsort(logits, axis=-1)[:, 1 : 1 + C]  # not what the router prefers
    ours = lambda logits: apply_experts(
        x, routed(logits, C, normalised=True, experts=given.astype(np.uint8)), kernels, activation="silu"
    )
    theirs = lambda logits: looped(x, logits, kernels, given, True)
    np.testing.assert_allclose(ours(logits), theirs(logits), **CLOSE)
    slopes = [jax.grad(lambda logits, f=f: jnp.sum(f(logits) ** 2))(logits) for f in (ours, theirs)]
    np.testing.assert_allclose(*slopes, **CLOSE)


def test_parts_of_the_experts_add_up_to_all_of_them():
    x, logits, kernels = material()
    choice = routed(logits, C, normalised=True)
    whole = apply_experts(x, choice, kernels, activation="silu")
    halves = [
        apply_experts(x, choice, Kernels(*(k[at : at + 3] for k in kernels)), activation="silu", first=at)
        for at in (0, 3)
    ]
    assert all(np.abs(half).max() > 0.1 for half in halves)
    np.testing.assert_allclose(sum(halves), whole, **CLOSE)


def test_all_tokens_may_choose_the_same_experts():
    x, _, kernels = material()
    choice = ExpertChoice(np.broadcast_to(np.array([2, 0], np.int32), (U, C)), np.full((U, C), 0.5, np.float32))
    only = lambda n: (jax.nn.silu(x @ kernels.gate[n]) * (x @ kernels.up[n])) @ kernels.down[n]
    np.testing.assert_allclose(apply_experts(x, choice, kernels, activation="silu"), (only(2) + only(0)) / 2, **CLOSE)
