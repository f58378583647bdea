"""Visibility between the tokens of a row as intervals of positions, and the blocks of scores in which anything is seen.

Each token of a trunk-and-branch row sees at most two intervals of the row's positions: a part of a trunk, and its own
segment up to itself. Four integers a token therefore hold the whole mask:

    position     0    1    2    3    4    5  |   6    7    8
    token       q0   q1   q2   q3   s0   s1  |  a0   a1   b0     trunks q and s; branch a of q (fork 2), b of s (fork 1)
    of a trunk   -    -    -    -    -    -  |  0-2  0-2  4-5    begin and end
    own         0-1  0-2  0-3  0-4  4-5  4-6 |  6-7  6-8  8-9

A fused kernel (`fr3e_jax.policy.row_kernels` for TPU, `fr3e_jax.policy.triton_row_kernels` for GPU) computes the mask
of a block from them, and passes over blocks in which nothing is seen.

Dimension key: B rows, S trunk positions, N lanes, T positions of a lane, P = S + N·T positions of a whole row, Q and J
numbers of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fr3e_jax.policy.attention import RowView

UNSEEN, PARTLY_SEEN, WHOLLY_SEEN = 0, 1, 2


class BlockList(NamedTuple):
    """For each block of one side, the blocks of the other side in which anything is seen, in order."""

    entries: jax.Array  # int32 [B * Q * J]: twice the number of the block, plus 1 where all of it is seen
    counts: jax.Array  # int32 [B * Q]: number of entries that count


def seen_intervals(view: RowView, window: int, limit: int = 0) -> jax.Array:
    """The visible positions of each token of a row, int32 ``[B, 4, P]``: begin and end in its trunk and in its segment.

    Padding sees nothing: its intervals are empty.

    Args:
      view: the tokens of a segment lie end to end.
      window: number of lanes that a lane's token sees, as in `fr3e_jax.policy.attention.row_attention`.
      limit: positions of its segment that a token sees, its own included (`Scoring.window`); 0: all.
    """
    batch, lanes, length = view.segment.shape
    size = view.trunk_segment.shape[1]

    def flat(x):
        return x.reshape(batch, -1).astype(jnp.int32)

    of_trunks = _own(flat(view.trunk_segment), 0, 0, limit)
    lane = jnp.arange(lanes * length, dtype=jnp.int32)[None] // length
    of_lanes = _own(flat(view.segment), size, (lane - min(window, lanes) + 1) * length, limit)
    real = flat(view.segment) > 0
    begin = jnp.where(real, flat(view.start), 0)
    shared = jnp.stack([begin, jnp.where(real, begin + flat(view.fork), 0)], axis=1)
    shared = jnp.pad(shared, ((0, 0), (0, 0), (size, 0)))
    return jnp.concatenate([shared, jnp.concatenate([of_trunks, of_lanes], axis=2)], axis=1)


def _own(segment: jax.Array, offset: int, earliest, limit: int) -> jax.Array:
    """Begin and end of what tokens see of their own segments: int32 ``[B, 2, L]`` of ``segment [B, L]``.

    ``offset``: position of the first token; ``earliest``: the first place of ``segment`` that each token may see;
    ``limit``: of `seen_intervals`.
    """
    position = jnp.arange(segment.shape[1], dtype=jnp.int32)[None]
    changes = jnp.pad(segment[:, 1:] != segment[:, :-1], ((0, 0), (1, 0)))
    first = jnp.maximum(jax.lax.cummax(jnp.where(changes, position, 0), axis=1), earliest)
    first = jnp.maximum(first, position - limit + 1) if limit else first
    return jnp.where(segment[:, None] > 0, jnp.stack([first, first * 0 + position + 1], axis=1) + offset, 0)


def is_within(position: jax.Array, intervals: Sequence[jax.Array]) -> jax.Array:
    """Whether keys' positions are seen by queries, of whose intervals the begins and ends broadcast with them."""
    trunk_begin, trunk_end, begin, end = intervals
    return (position >= trunk_begin) & (position < trunk_end) | (position >= begin) & (position < end)


def block_kinds(seen: jax.Array, query_block: int, key_block: int, keys: int) -> jax.Array:
    """int32 ``[B, Q, J]``: whether queries of a block see nothing, something or all of a block of keys.

    A block is called partly seen, too, where each query sees all of it in two intervals.

    Args:
      seen: of `seen_intervals`, or a part of its positions, which ``query_block`` divides.
      keys: number of positions that may be seen; ``key_block`` divides it.
    """
    batch = len(seen)
    low = jnp.arange(0, keys, key_block, dtype=jnp.int32)[None, None]
    high = low + key_block
    trunk_begin, trunk_end, begin, end = (seen[:, n, :, None] for n in range(4))

    def overlap(begin, end):
        return jnp.maximum(begin, low) < jnp.minimum(end, high)

    def covers(begin, end):
        return (begin <= low) & (end >= high)

    def blocks(x):
        return x.reshape(batch, -1, query_block, keys // key_block)

    some = blocks(overlap(trunk_begin, trunk_end) | overlap(begin, end)).any(axis=2)
    is_whole = blocks(covers(trunk_begin, trunk_end) | covers(begin, end)).all(axis=2)
    return some.astype(jnp.int32) + is_whole


def block_list(kinds: jax.Array) -> BlockList:
    """The blocks of the last axis of ``kinds [B, Q, J]`` that are seen at all, for each block of the axis before."""
    order = jnp.argsort(kinds == UNSEEN, axis=-1, stable=True)
    is_whole = jnp.take_along_axis(kinds, order, axis=-1) == WHOLLY_SEEN
    entries = 2 * order + is_whole
    return BlockList(entries.astype(jnp.int32).reshape(-1), (kinds > UNSEEN).sum(axis=-1, dtype=jnp.int32).reshape(-1))
