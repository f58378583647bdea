"""Attention of a decode step: one query per lane over its trunk and its own tokens. (`attention` has the mathematics.)

A lane's own tokens lie in two places. A chunk of decode steps only reads the *ring*. It writes into the *recent*
columns, a small copy of some columns of the ring (`fr3e_jax.programs.decode_steps`). On TPU a column is written in one
layout and a matrix product reads another, so a cache that one loop both reads and writes would be copied at every step.

Every product is a batched matrix product in the order of its operands, with keys ``[D, positions]`` and values
``[positions, D]``: no cache is transposed to be read. An ``einsum`` would choose the order itself, and on CPU XLA then
transposes the values of all lanes at every step (docs/developers/performance_notebook.md).

Dimension key: B trunk slots, N lanes of each, L = B·N lanes, S trunk positions, C own positions (of the ring, or
recent), K key/value heads, G query heads per key/value head, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fr3e_jax.policy.attention import PLAIN, KeyValue, Scoring


class RingSpan(NamedTuple):
    """The ring columns that each lane sees: ``count`` of them, around the ring; int32 ``[L]``. Idle lanes see none."""

    first: jax.Array
    count: jax.Array


class OwnCache(NamedTuple):
    """The lanes' own keys and values in a decode step."""

    ring: tuple[KeyValue, ...]  # of each layer, only read: key [L, K, D, C], value [L, K, C, D]; () if all is recent
    ring_seen: tuple[jax.Array, ...]  # of each kind of layer, bool [L, C]
    ring_span: tuple[RingSpan, ...]  # of each kind, the same for fused kernels
    recent: tuple[KeyValue, ...]  # of each layer, written into: key [L, K, D, R], value [L, K, R, D]
    recent_seen: tuple[jax.Array, ...]  # of each kind, bool [L, R], the new token's column included
    trunk_start: tuple[jax.Array | None, ...]  # of each kind, int [B, N], the first trunk position seen; None: 0
    column: jax.Array  # int32 scalar, the column of ``recent`` that takes the new token
    writes: jax.Array  # bool [L]; the other lanes keep the content of the column

    def of_layer(self, layer_index: int, kind: int) -> OwnCache:
        """The cache with the ring and the recent columns of this layer alone, and what its kind sees."""
        layer, sort = slice(layer_index, layer_index + 1), slice(kind, kind + 1)
        return self._replace(
            ring=self.ring[layer],
            ring_seen=self.ring_seen[sort],
            ring_span=self.ring_span[sort],
            recent=self.recent[layer],
            recent_seen=self.recent_seen[sort],
            trunk_start=self.trunk_start[sort],
        )


def _scores(query: jax.Array, key: jax.Array, visible: jax.Array, scoring: Scoring) -> jax.Array:
    """float32 ``query [..., i, D] @ key [..., D, j]``, softcapped; -inf where ``visible [..., i, j]`` is false."""
    lead = tuple(range(query.ndim - 2))
    dimensions = (((query.ndim - 1,), (key.ndim - 2,)), (lead, lead))
    scores = jax.lax.dot_general(query, key, dimensions, preferred_element_type=jnp.float32)
    return jnp.where(visible, scoring.capped(scores), -jnp.inf)


def _mix(weights: jax.Array, value: jax.Array) -> jax.Array:
    """float32 ``weights [..., i, j] @ value [..., j, D]``."""
    lead = tuple(range(weights.ndim - 2))
    dimensions = (((weights.ndim - 1,), (value.ndim - 2,)), (lead, lead))
    return jax.lax.dot_general(weights.astype(value.dtype), value, dimensions, preferred_element_type=jnp.float32)


class OwnPart(NamedTuple):
    """Some of the lanes' own tokens, and which of them each lane sees."""

    cache: KeyValue  # key [L, K, D, C], value [L, K, C, D]
    seen: jax.Array  # bool [L, C]


def decode_attention(
    query: jax.Array,
    branches: Sequence[OwnPart],
    trunk: KeyValue,
    fork: jax.Array,
    start: jax.Array | None = None,
    scoring: Scoring = PLAIN,
) -> jax.Array:
    """Attention of one new token per lane.

    Args:
      query: ``[B, N, K, G, D]``.
      branches: the lanes' branches in any number of parts; each query sees at least itself.
      trunk: ``key [B, K, D, S]``, ``value [B, K, S, D]``.
      fork: int ``[B, N]``, the trunk position before which each lane sees; 0 is allowed.
      start: int ``[B, N]``, the first trunk position that each lane sees; None: 0.
      scoring: how keys are scored. The masks, not it, say what is seen.

    Returns:
      ``[B, N, K, G, D]`` in the query's dtype. Scores and softmax are float32.
    """
    batch, lanes, kv_heads, group, head_dim = query.shape
    query = scoring.scaled(query)

    def by_trunk(x):  # [L, K, G, ...] -> [B, K, N * G, ...]: all lanes of a trunk read its cache together
        x = x.reshape(batch, lanes, *x.shape[1:])
        return jnp.swapaxes(x, 1, 2).reshape(batch, kv_heads, lanes * group, *x.shape[4:])

    def by_lane(x):
        x = jnp.swapaxes(x.reshape(batch, kv_heads, lanes, group, *x.shape[3:]), 1, 2)
        return x.reshape(batch * lanes, *x.shape[2:])

    flat = query.reshape(batch * lanes, kv_heads, group, head_dim)
    branch_scores = [_scores(flat, branch.cache.key, branch.seen[:, None, None], scoring) for branch in branches]
    at = jnp.arange(trunk.key.shape[-1])[None, None]
    visible = at < fork[..., None]  # b n s
    visible = visible if start is None else visible & (at >= start[..., None])
    visible = jnp.repeat(visible, group, axis=1)[:, None]
    trunk_scores = _scores(by_trunk(flat), trunk.key, visible, scoring)

    largest = by_lane(trunk_scores.max(axis=-1))
    for scores in branch_scores:
        largest = jnp.maximum(largest, scores.max(axis=-1))
    trunk_weights = jnp.exp(trunk_scores - by_trunk(largest)[..., None])
    total, mixed = by_lane(trunk_weights.sum(axis=-1)), by_lane(_mix(trunk_weights, trunk.value))
    for branch, scores in zip(branches, branch_scores, strict=True):
        weights = jnp.exp(scores - largest[..., None])
        total, mixed = total + weights.sum(axis=-1), mixed + _mix(weights, branch.cache.value)
    return (mixed / total[..., None]).astype(query.dtype).reshape(query.shape)


def step_attention(
    query: jax.Array, cache: OwnCache, trunk: KeyValue, fork: jax.Array, scoring: Scoring = PLAIN
) -> jax.Array:
    """`decode_attention` over the cache of one layer, its new token written in."""
    parts = [OwnPart(cache.recent[0], cache.recent_seen[0])]
    parts += [OwnPart(ring, cache.ring_seen[0]) for ring in cache.ring]
    return decode_attention(query, parts, trunk, fork, cache.trunk_start[0], scoring)


def merged_with(
    mixed: jax.Array, lse: jax.Array, query: jax.Array, branch: OwnPart, scoring: Scoring = PLAIN
) -> jax.Array:
    """Attention over other positions, merged with that over a part of the lanes' branches.

    Args:
      mixed, lse: of the other positions, float32 ``[B, N, K, G, D]`` and ``[B, N, K, G]``.
      query: ``[B, N, K, G, D]``.
      branch, scoring: as in `decode_attention`.

    Returns:
      ``[B, N, K, G, D]`` in the query's dtype.
    """

    def flat(x):
        return x.reshape(-1, *x.shape[2:])

    scores = _scores(flat(scoring.scaled(query)), branch.cache.key, branch.seen[:, None, None], scoring)
    largest = jnp.maximum(scores.max(axis=-1), flat(lse))
    weights, of_others = jnp.exp(scores - largest[..., None]), jnp.exp(flat(lse) - largest)
    total = weights.sum(axis=-1) + of_others
    both = _mix(weights, branch.cache.value) + of_others[..., None] * flat(mixed)
    return (both / total[..., None]).astype(query.dtype).reshape(query.shape)
