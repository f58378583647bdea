"""The decode step's attention against one softmax over each lane's flattened sequence."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy.attention import KeyValue
from fr3e_jax.policy.decode_attention import OwnPart
from fr3e_jax.policy.decode_attention import decode_attention as attention_of_parts

S, C, D = 5, 4, 6
FORKS = {1: [[5], [0], [3]], 4: [[0, 1, 3, 5], [5, 5, 2, 4], [1, 1, 1, 1]]}


def draw(lanes, kv_heads, group, dtype=jnp.float32):
    rng = np.random.default_rng(lanes + kv_heads)
    normal = lambda *shape: rng.standard_normal(shape).astype(dtype)
    trunks = len(FORKS[lanes])
    count = trunks * lanes
    own_mask = rng.random((count, C)) < 0.5
    own_mask[:, rng.integers(C)] = True  # each query sees at least itself
    return (
        normal(trunks, lanes, kv_heads, group, D) * np.asarray(2, dtype),
        KeyValue(normal(count, kv_heads, D, C), normal(count, kv_heads, C, D)),
        own_mask,
        KeyValue(normal(trunks, kv_heads, D, S), normal(trunks, kv_heads, S, D)),
        np.array(FORKS[lanes]),
    )


@partial(jax.jit, static_argnames="cut")
def decode_attention(query, own, own_mask, trunk, fork, cut=C):
    """`decode_attention` with the own tokens before ``cut`` in one part and the others in a second one."""
    parts = [OwnPart(KeyValue(own.key[..., :cut], own.value[:, :, :cut]), own_mask[:, :cut])]
    if cut < C:
        parts.append(OwnPart(KeyValue(own.key[..., cut:], own.value[:, :, cut:]), own_mask[:, cut:]))
    return attention_of_parts(query, parts, trunk, fork)


def flattened(query, own, own_mask, trunk, fork):
    """The same attention in NumPy's float64, one query and head at a time."""
    query, own, trunk = jax.tree.map(lambda x: np.asarray(x, np.float64), (query, own, trunk))
    out = np.zeros(query.shape)
    for b, n, k, g in np.ndindex(*query.shape[:-1]):
        lane, seen = b * query.shape[1] + n, fork[b, n]
        mask = own_mask[lane]
        keys = np.concatenate([trunk.key[b, k, :, :seen].T, own.key[lane, k][:, mask].T])
        values = np.concatenate([trunk.value[b, k, :seen], own.value[lane, k, mask]])
        weights = np.exp(keys @ query[b, n, k, g] / np.sqrt(D))
        out[b, n, k, g] = weights @ values / weights.sum()
    return out


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("heads", [(1, 1), (2, 3)], ids=["one_head", "grouped_heads"])
def test_decode_attention_equals_softmax_over_the_flattened_sequence(lanes, heads):
    inputs = draw(lanes, *heads)
    np.testing.assert_allclose(decode_attention(*inputs), flattened(*inputs), rtol=1e-5, atol=1e-6)
    # A part of which some lanes see nothing adds nothing to them.
    assert (~inputs[2][:, :1]).any()
    np.testing.assert_allclose(decode_attention(*inputs, cut=1), flattened(*inputs), rtol=1e-5, atol=1e-6)


def test_bfloat16_caches_have_float32_scores():
    inputs = draw(4, 2, 3, jnp.bfloat16)
    result = decode_attention(*inputs)
    assert result.dtype == jnp.bfloat16
    np.testing.assert_allclose(result.astype(jnp.float32), flattened(*inputs), rtol=0.03, atol=0.03)
    dots = [e for e in jax.make_jaxpr(decode_attention.__wrapped__)(*inputs).eqns if e.primitive.name == "dot_general"]
    assert len(dots) == 4 and all(dot.outvars[0].aval.dtype == jnp.float32 for dot in dots)


def test_unseen_position_does_not_change_the_result():
    query, own, own_mask, trunk, fork = draw(4, 2, 3)
    hidden_own, far = ~own_mask[:, None, :, None], np.float32(1e6)
    fork = np.minimum(fork, S - 1)
    own_key = np.where(np.swapaxes(hidden_own, 2, 3), far, own.key)
    poisoned_own = KeyValue(own_key, np.where(hidden_own, far, own.value))
    poisoned_trunk = KeyValue(trunk.key.copy(), trunk.value.copy())
    poisoned_trunk.key[..., S - 1], poisoned_trunk.value[:, :, S - 1] = far, far
    poisoned = decode_attention(query, poisoned_own, own_mask, poisoned_trunk, fork)
    np.testing.assert_array_equal(poisoned, decode_attention(query, own, own_mask, trunk, fork))
