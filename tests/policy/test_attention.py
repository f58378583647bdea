"""Trunk-and-branch attention against one softmax over the flattened sequence, values and gradients."""

from __future__ import annotations

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy.attention import KeyValue, trunk_branch_attention
from fr3e_jax.policy.rotary import RopeScaling, rotary, rotary_frequencies, rotation

B, N, T, S, D = 2, 2, 4, 5, 6
SEGMENT = np.array([[[1, 1, 2, 2], [3, 3, 3, 3]], [[1, 2, 2, 2], [3, 3, 4, 4]]])
OWN_MASK = (SEGMENT[..., :, None] == SEGMENT[..., None, :]) & np.tril(np.ones((T, T), bool))
FORKS = np.array([[[0, 0, 3, 3], [5, 5, 5, 5]], [[1, 2, 2, 2], [4, 4, 0, 0]]])


def draw(kv_heads, group, *, dtype=jnp.float32, seed=0):
    """Query, own and trunk keys and values, and a cotangent of the result."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), dtype)
    query = 2 * normal(B, N, T, kv_heads, group, D)
    own = KeyValue(normal(B, N, kv_heads, D, T), normal(B, N, kv_heads, T, D))
    trunk = KeyValue(normal(B, kv_heads, D, S), normal(B, kv_heads, S, D))
    return (query, own, trunk), normal(*query.shape)


def flattened_attention(query, own, trunk, forks, cotangent=None):
    """softmax(q k / sqrt(D)) v over ``trunk[:fork]`` and the visible branch tokens, one query and head at a time.

    NumPy in float64. With a cotangent: the result and the gradients of query, own and trunk.
    """
    query, own, trunk = jax.tree.map(lambda x: np.asarray(x, np.float64), (query, own, trunk))
    out, gradients = np.zeros(query.shape), jax.tree.map(np.zeros_like, (query, own, trunk))
    d_query, d_own, d_trunk = gradients
    for b, n, t, k, g in np.ndindex(*query.shape[:-1]):
        seen, fork = np.flatnonzero(OWN_MASK[b, n, t]), forks[b, n, t]
        keys = np.concatenate([trunk.key[b, k, :, :fork].T, own.key[b, n, k][:, seen].T])
        values = np.concatenate([trunk.value[b, k, :fork], own.value[b, n, k, seen]])
        scores = keys @ query[b, n, t, k, g] / np.sqrt(D)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        out[b, n, t, k, g] = weights @ values
        if cotangent is None:
            continue
        c = np.asarray(cotangent[b, n, t, k, g], np.float64)
        d_values = np.outer(weights, c)
        d_scores = weights * (values @ c - weights @ values @ c) / np.sqrt(D)
        d_keys = np.outer(d_scores, query[b, n, t, k, g])
        d_query[b, n, t, k, g] = d_scores @ keys
        d_trunk.key[b, k, :, :fork] += d_keys[:fork].T
        d_trunk.value[b, k, :fork] += d_values[:fork]
        d_own.key[b, n, k][:, seen] += d_keys[fork:].T
        d_own.value[b, n, k, seen] += d_values[fork:]
    return out if cotangent is None else (out, gradients)


def values_and_gradients(inputs, cotangent, forks=FORKS):
    """Result and gradients of `trunk_branch_attention`; ``inputs``: (query, own) or (query, own, trunk)."""

    @jax.jit
    def run(inputs, forks):
        attend = lambda query, own, *trunk: trunk_branch_attention(query, own, OWN_MASK, *trunk, fork=forks)
        out, pull = jax.vjp(attend, *inputs)
        return out, pull(cotangent)

    return run(inputs, jnp.asarray(forks))


@pytest.mark.parametrize(("kv_heads", "group"), [(2, 2), (4, 1), (1, 3)])
def test_trunk_branch_attention_equals_softmax_over_the_flattened_sequence(kv_heads, group):
    inputs, cotangent = draw(kv_heads, group)
    ours = values_and_gradients(inputs, cotangent)
    plain = flattened_attention(*inputs, FORKS, cotangent)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_scores_far_apart_in_trunk_and_branch_neither_overflow_nor_vanish():
    """exp(300) is infinite in float32; the common maximum keeps the merge finite, whichever part is larger."""
    (query, own, trunk), cotangent = draw(2, 2)
    for factors in ((300.0, 1.0), (1.0, 300.0)):
        scaled = own._replace(key=own.key * factors[0]), trunk._replace(key=trunk.key * factors[1])
        out, gradients = values_and_gradients((query, *scaled), cotangent)
        np.testing.assert_allclose(out, flattened_attention(query, *scaled, FORKS), rtol=1e-4, atol=1e-4)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_bfloat16_attention_is_within_four_roundings_of_the_exact_one():
    """Weights, products and result are rounded to 8 bits once each: within four such roundings of the exact value."""
    inputs, _ = draw(2, 2, dtype=jnp.bfloat16)
    out = jax.jit(trunk_branch_attention)(inputs[0], inputs[1], OWN_MASK, inputs[2], jnp.asarray(FORKS))
    assert out.dtype == jnp.bfloat16
    exact = flattened_attention(*jax.tree.map(lambda x: x.astype(jnp.float32), inputs), FORKS)
    largest = max(float(jnp.abs(kv.value).max()) for kv in inputs[1:])
    np.testing.assert_allclose(out.astype(jnp.float32), exact, rtol=0, atol=4 * 2**-8 * largest)


def test_rotary_turns_pairs_half_a_head_apart():
    """D = 4, theta = 100: pairs (x0, x2) by the angle p, (x1, x3) by p / 10."""
    x = np.array([0.3, -1.2, 0.7, 2.0], np.float32)
    turned = rotary(jnp.asarray(x).reshape(1, 1, 1, 1, 4), rotation(jnp.full((1, 1, 1), 3), 4, theta=100.0)).reshape(4)
    expected = [
        x[0] * np.cos(3) - x[2] * np.sin(3),
        x[1] * np.cos(0.3) - x[3] * np.sin(0.3),
        x[2] * np.cos(3) + x[0] * np.sin(3),
        x[3] * np.cos(0.3) + x[1] * np.sin(0.3),
    ]
    np.testing.assert_allclose(turned, expected, rtol=1e-5)


@pytest.mark.parametrize(("head_dim", "theta"), [(8, 1e4), (64, 1e6), (80, 1e4), (128, 1e6), (128, 1e7)])
def test_rotary_frequencies_are_rounded_the_same_on_every_processor(head_dim, theta):
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    with localcontext(prec=40):
        powers = [float(Decimal(theta) ** Decimal(float(exponent))) for exponent in exponents]
    np.testing.assert_array_equal(rotary_frequencies(head_dim, theta), np.float32(1) / np.array(powers, np.float32))


def test_scaled_frequencies_of_long_contexts():
    """Periods of 1, 10, 100 and 1,000 times 2 pi, of a head of 8 with base 10,000; contexts of 628 positions."""
    plain = np.array([1.0, 0.1, 0.01, 0.001])
    scaled = lambda *args, **names: rotary_frequencies(8, 1e4, RopeScaling(*args, **names)) / plain
    np.testing.assert_allclose(scaled("linear", 4.0), np.full(4, 0.25), rtol=1e-6)
    # 100 turns, 10, 1 and 0.1 of the context: kept above high_freq_factor, divided below low_freq_factor.
    llama3 = scaled("llama3", 8.0, 200 * np.pi, low_freq_factor=0.5, high_freq_factor=2.0)
    np.testing.assert_allclose(llama3, [1, 1, (2 / 3) / 8 + 1 / 3, 1 / 8], rtol=1e-5)
    # The ramp of YaRN goes from the frequency with 32 turns, the first before it being 0, to the first with one, 2.
    yarn = scaled("yarn", 4.0, 200 * np.pi)
    np.testing.assert_allclose(yarn, [1, (1 + 1 / 4) / 2, 1 / 4, 1 / 4], rtol=1e-5)
    turn = rotation(jnp.zeros((1, 1, 1), int), 8, 1e4, RopeScaling("yarn", 4.0, 200 * np.pi))
    np.testing.assert_allclose(turn.cos, 0.1 * np.log(4) + 1, rtol=1e-6)
