"""Trunk-and-branch attention, the only attention of the network.

A branch token sees the first ``fork`` tokens of its trunk and its own branch up to itself. The trunk's keys and values
exist once and are read once for all of its branches; the two parts are merged by their log-sum-exp, so the result
equals attention over the flattened sequence ``trunk[:fork] + branch``.

Dimension key: B rows or trunk slots, N lanes of each, T query tokens of a lane, S trunk positions, C own positions,
P = S + N·T positions of a whole row, K key/value heads, G query heads per key/value head, D head size.

Keys are stored ``[..., D, positions]`` and values ``[..., positions, D]``: with XLA on CPU a matrix product over keys
laid out this way is several times faster than over ``[positions, D]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

_EXTENTS = 4  # parts of a sequence; the queries of a part are compared only with keys up to its end


class KeyValue(NamedTuple):
    """Keys and values of one layer: trunks ``key [B, K, D, S]``, ``value [B, K, S, D]``; lanes ``[B, N, ...]``."""

    key: jax.Array
    value: jax.Array


class RowView(NamedTuple):
    """Visibility between the tokens of a row: S trunk positions, then N lanes of T tokens.

    A token sees itself and the earlier tokens of its segment. A lane's token also sees ``fork`` trunk positions from
    ``start``.
    """

    trunk_segment: jax.Array  # int [B, S], which trunk
    segment: jax.Array  # int [B, N, T], which branch
    fork: jax.Array  # int [B, N, T], how many trunk positions a lane's token sees
    start: jax.Array  # int [B, N, T], the first of them

    def within(self, window: int, offset: jax.Array) -> RowView:
        """The view of a layer whose tokens see ``window`` positions, their own included (0: all).

        ``offset``: int ``[B, N, T]``, how many tokens of its branch precede a token. Of the trunk a token then sees the
        end; what it sees of its own segment, `row_attention` limits.
        """
        if not window:
            return self
        hidden = jnp.clip(self.fork + offset - window + 1, 0, self.fork)
        return self._replace(fork=self.fork - hidden, start=self.start + hidden)


class Scoring(NamedTuple):
    """The scoring of keys in the layers of a kind. Static."""

    scale: float = 0.0  # of the products of queries and keys; 0: 1 / sqrt(D)
    softcap: float = 0.0  # bound c of scores, c tanh(score / c); 0: none (Gemma Team 2024, section 2)
    window: int = 0  # positions that a token sees, its own included; 0: all (Beltagy et al. 2020, section 3.1)

    def scaled(self, query: jax.Array) -> jax.Array:
        """``query [..., D]`` times the scale."""
        return query * (self.scale or query.shape[-1] ** -0.5)

    def capped(self, scores: jax.Array) -> jax.Array:
        return softcapped(scores, self.softcap)


PLAIN = Scoring()


def softcapped(x: jax.Array, bound: float) -> jax.Array:
    """``bound tanh(x / bound)``; x itself where the bound is 0."""
    return bound * jnp.tanh(x / bound) if bound else x


class RowPart(NamedTuple):
    """The queries of one part of a row that is cut by positions (`fr3e_jax.policy.row_parts`)."""

    view: RowView  # of the part's own trunk positions and lanes' positions
    trunk_place: jax.Array  # int [1, 1, S of the part], place in the trunk
    lane_place: jax.Array  # int [1, 1, T of the part], place in the lane


def trunk_branch_attention(
    query: jax.Array,
    branch: KeyValue,
    branch_mask: jax.Array,
    trunk: KeyValue | None = None,
    fork: jax.Array | None = None,
    start: jax.Array | None = None,
    *,
    scoring: Scoring = PLAIN,
) -> jax.Array:
    """Attention of branch tokens over their trunk (``fork`` positions from ``start``) and their own branch.

    Args:
      query: ``[B, N, T, K, G, D]``.
      branch: ``key [B, N, K, D, C]``, ``value [B, N, K, C, D]``.
      branch_mask: bool ``[B, N, T, C]``, true where a query sees a position of its branch, at least its own.
      trunk: ``key [B, K, D, S]``, ``value [B, K, S, D]``; None in the trunk's own pass.
      fork: int ``[B, N, T]``, number of trunk positions that each query sees; 0 is allowed.
      start: int ``[B, N, T]``, the first of these positions, where a row holds several trunks; None: 0.
      scoring: how keys are scored. The masks, not it, say what is seen.

    Returns:
      ``[B, N, T, K, G, D]`` in the query's dtype. Scores and softmax are float32.
    """
    batch, lanes, length, kv_heads, group, head_dim = query.shape
    # All scores lie as [B, K, N, T·G, positions]. The products of both parts, their maxima and their sums then need no
    # transposition; only the small query, key and value are transposed.
    query = jnp.transpose(scoring.scaled(query), (0, 3, 1, 2, 4, 5))
    mine = query.reshape(batch, kv_heads, lanes, length * group, head_dim)
    branch = KeyValue(*(jnp.swapaxes(x, 1, 2) for x in branch))
    branch_scores = scoring.capped(_scores(mine, branch.key, 3)).reshape(*query.shape[:5], -1) + _bias(branch_mask)
    largest = jax.lax.stop_gradient(branch_scores).max(axis=-1)  # b k n t g; finite, because every query sees itself
    if trunk is not None:
        first = jnp.zeros_like(fork) if start is None else start
        at = jnp.arange(trunk.key.shape[-1])[None, None, None]
        seen = (at >= first[..., None]) & (at < (first + fork)[..., None])
        shared = query.reshape(batch, kv_heads, lanes * length * group, head_dim)
        trunk_scores = scoring.capped(_scores(shared, trunk.key, 2)).reshape(*query.shape[:5], -1) + _bias(seen)
        largest = jnp.maximum(largest, jax.lax.stop_gradient(trunk_scores).max(axis=-1))

    weights = jnp.exp(branch_scores - largest[..., None])
    total = weights.sum(axis=-1)
    mixed = _batched(weights.astype(branch.value.dtype).reshape(*mine.shape[:4], -1), branch.value, 3).reshape(
        query.shape
    )
    if trunk is not None:
        weights = jnp.exp(trunk_scores - largest[..., None])
        total = total + weights.sum(axis=-1)
        read = _batched(weights.astype(trunk.value.dtype).reshape(*shared.shape[:3], -1), trunk.value, 2)
        mixed = mixed + read.reshape(query.shape)
    mixed = (mixed / total[..., None]).astype(query.dtype)
    return jnp.transpose(mixed, (0, 2, 3, 1, 4, 5))


def row_attention(
    query: jax.Array,
    row: KeyValue,
    view: RowView,
    *,
    window: int = 1,
    block: int = 0,
    scoring: Scoring = PLAIN,
    queries: RowPart | None = None,
    reach: Callable[[int, int], int] = lambda length, end: end,
) -> jax.Array:
    """Attention of whole rows, trunk and lanes end to end: lanes read the trunk's keys and values of this same pass.

    Args:
      query: ``[B, 1, P, K, G, D]``.
      row: ``key [B, 1, K, D, P]``, ``value [B, 1, K, P, D]``.
      view: what each token sees.
      window: number of lanes that a lane's token sees: its own and the ``window - 1`` before it.
      block: number of tokens of a row, roughly, whose scores exist at once; 0: all. The backward pass computes the
        scores of each block again.
      scoring: how keys are scored, and how far back in its segment a token sees; ``view`` is that of its window.
      queries: the queries, where they are only a part of the row; None: all tokens. Keys and values are always whole.
      reach: ``(length, end)`` to the positions of a trunk or lane of ``length`` that hold its first ``end`` queries.

    Returns:
      ``[B, 1, P, K, G, D]``, or the part of it, in the query's dtype. Scores and softmax are float32.
    """
    batch, lanes, length = view.fork.shape
    size = view.trunk_segment.shape[-1]
    trunk = KeyValue(row.key[..., :size], row.value[..., :size, :])
    key = jnp.moveaxis(row.key[:, 0, ..., size:].reshape(batch, *row.key.shape[2:4], lanes, length), 3, 1)
    value = row.value[:, 0, :, size:].reshape(batch, row.value.shape[2], lanes, length, -1)
    if queries is None:
        trunk_place, lane_place = (jnp.arange(count, dtype=jnp.int32).reshape(1, 1, -1) for count in (size, length))
        queries = RowPart(view, trunk_place, lane_place)
    mine = queries.trunk_place.shape[-1]
    mixed_trunk = _causal_attention(
        (query[:, :, :mine], queries.view.trunk_segment[:, None], queries.trunk_place),
        trunk,
        view.trunk_segment[:, None],
        block,
        1,
        reach,
        scoring,
    )
    mixed_lanes = _causal_attention(
        (
            query[:, 0, mine:].reshape(batch, *queries.view.segment.shape[1:], *query.shape[3:]),
            queries.view.segment,
            queries.lane_place,
            queries.view.fork,
            queries.view.start,
        ),
        KeyValue(key, jnp.swapaxes(value, 1, 2)),
        view.segment,
        block,
        window,
        reach,
        scoring,
        KeyValue(trunk.key[:, 0], trunk.value[:, 0]),
    )
    return jnp.concatenate([mixed_trunk, mixed_lanes.reshape(batch, 1, -1, *query.shape[3:])], axis=2)


def _causal_attention(
    queries: tuple[jax.Array, ...],
    keys: KeyValue,
    segment: jax.Array,
    block: int,
    window: int,
    reach: Callable[[int, int], int],
    scoring: Scoring,
    trunk: KeyValue | None = None,
):
    """`trunk_branch_attention` where a query sees itself and the earlier positions of its segment.

    Args:
      queries: ``[B, N, T, K, G, D]``; their segments ``[B, N, T]`` and places ``[1, 1, T]``; where there is a trunk,
        their ``fork`` and ``start`` as well.
      keys: keys and values of whole lanes, which may be longer than those of queries.
      segment: int ``[B, N, positions]`` of these.
      block, window, reach, scoring: as in `row_attention`.
      trunk: as in `trunk_branch_attention`.
    """
    lanes, lane_length = segment.shape[1:]
    before = min(window, lanes) - 1
    query, mine, position, *shared = queries
    length = query.shape[2]
    queries = (query, mine, jnp.broadcast_to(position, mine.shape), *shared)
    keys = KeyValue(_with_lanes_before(keys.key, before, 4), _with_lanes_before(keys.value, before, 3))
    segments = _with_lanes_before(segment, before, 2)
    positions = jnp.arange(-before * lane_length, lane_length, dtype=jnp.int32).reshape(1, 1, 1, -1)

    def attend(queries, extent):
        query, mine, at, *shared = queries
        extent += before * lane_length
        seen = (mine[..., None] == segments[:, :, None, :extent]) & (at[..., None] >= positions[..., :extent])
        if scoring.window:
            seen &= at[..., None] - positions[..., :extent] < scoring.window
        visible = KeyValue(keys.key[..., :extent], keys.value[..., :extent, :])
        return trunk_branch_attention(query, visible, seen, trunk, *shared, scoring=scoring)

    size = _block_size(length, block // lanes if block else length)
    if size == length:
        return attend(queries, lane_length)
    blocks = length // size
    queries = tuple(jnp.moveaxis(x.reshape(*x.shape[:2], blocks, size, *x.shape[3:]), 2, 0) for x in queries)
    ends = sorted({-(-blocks * step // _EXTENTS) for step in range(_EXTENTS + 1)})
    mixed = []
    for first, end in zip(ends, ends[1:], strict=False):
        extent = reach(lane_length, end * size)
        attend_block = jax.checkpoint(lambda queries, extent=extent: attend(queries, extent))
        mixed.append(jax.lax.map(attend_block, tuple(x[first:end] for x in queries)))
    return jnp.moveaxis(jnp.concatenate(mixed), 0, 2).reshape(query.shape)


def _with_lanes_before(x: jax.Array, before: int, axis: int) -> jax.Array:
    """``x [B, N, ...]`` with the positions (``axis``) of the ``before`` preceding lanes put in front of each lane's."""
    if not before:
        return x
    lanes = x.shape[1]
    padded = jnp.pad(x, [(0, 0), (before, 0), *[(0, 0)] * (x.ndim - 2)])
    return jnp.concatenate([padded[:, n : n + lanes] for n in range(before + 1)], axis=axis)


def _block_size(length: int, most: int) -> int:
    """``length`` if it is at most ``most``, else the largest power of two up to ``most`` that divides ``length``."""
    return length if length <= most else math.gcd(length, 1 << max(most.bit_length() - 1, 0))


def _bias(seen: jax.Array) -> jax.Array:
    """The mask ``[B, N, T, positions]`` as a bias of scores ``[B, K, N, T, G, positions]``: 0 where seen, else −inf.

    An added bias makes the weight of an unseen position 0, and its gradient too. A select would need another in the
    backward pass.
    """
    return jnp.where(seen, 0.0, -jnp.inf).astype(jnp.float32)[:, None, :, :, None, :]


def _batched(left: jax.Array, right: jax.Array, batch_axes: int) -> jax.Array:
    """float32 matrix products of ``[..., i, j]`` with ``[..., j, k]`` over ``batch_axes`` common leading axes."""
    axes = tuple(range(batch_axes))
    contract = ((batch_axes + 1,), (batch_axes,))
    return jax.lax.dot_general(left, right, (contract, (axes, axes)), preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _scores(query: jax.Array, key: jax.Array, batch_axes: int) -> jax.Array:
    """float32 ``[..., i, j]`` of ``query [..., i, D]`` and ``key [..., D, j]``.

    The gradient is written by hand: jax would compute the keys' gradient as ``[j, D]`` and transpose it, which takes
    XLA on CPU nearly twice as long.
    """
    return _batched(query, key, batch_axes)


def _scores_backward(batch_axes, saved, slope):
    query, key = saved
    axes = tuple(range(batch_axes))

    def contract(axis):
        return (((batch_axes + axis,), (batch_axes + axis,)), (axes, axes))

    product = partial(jax.lax.dot_general, preferred_element_type=jnp.float32)
    d_key = jax.lax.optimization_barrier(product(query, slope, contract(0)))
    return product(slope, key, contract(1)).astype(query.dtype), d_key.astype(key.dtype)


_scores.defvjp(lambda query, key, batch_axes: (_scores(query, key, batch_axes), (query, key)), _scores_backward)
