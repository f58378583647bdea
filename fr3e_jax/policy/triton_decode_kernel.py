"""Attention of a decode step over trunks and rings as a Pallas kernel for GPU, compiled by Triton.

As in `fr3e_jax.policy.decode_kernel`, only blocks that are seen are read, and those of a trunk once for all of its
lanes. What a lane sees of its trunk, and of its ring, are intervals of positions as in a row
(`fr3e_jax.policy.visibility`), so the same kernel reads both. Several programs share the blocks of one list where there
are too few lists for all cores of the GPU. The results are merged by their log-sum-exp.

Dimension key: X lists (trunk slots, or lanes), R rows of queries of each, Z programs that share a list; the rest as in
`fr3e_jax.policy.decode_kernel`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fr3e_jax.policy.attention import KeyValue, softcapped
from fr3e_jax.policy.decode_kernel import Seen
from fr3e_jax.policy.row_kernels import LOWEST, matrix_product
from fr3e_jax.policy.triton_row_kernels import Softmax, masked_scores, pltriton
from fr3e_jax.policy.visibility import block_kinds, block_list

_BLOCK_BYTES = 16 * 2**10  # of a block's keys
_ROWS = 16, 128  # of a block of queries: the fewest that a matrix unit takes, and as many as fit beside a block of keys
_PROGRAMS = 264  # two for each core of an H100


class _Read(NamedTuple):
    """The static part of a call of the kernel."""

    rows: int  # of a block of queries
    block: int  # positions
    size: int  # positions of a cache; the last block may be cut short
    programs: int  # that share a list
    softcap: float
    interpret: bool


def cache_kernel(p: _Read, entries, counts, seen, query, key, value, mixed, lse):
    """A block of queries against every Z-th of the blocks in which it sees anything."""
    first, row = pl.program_id(0), pl.program_id(1)
    offset = row * (entries.shape[0] // counts.shape[0]) + first
    intervals, head_dim = [seen[n] for n in range(4)], query.shape[1]
    queries = query[...].astype(key.dtype)

    def visit(n, softmax: Softmax) -> Softmax:
        begin = (entries[offset + n * p.programs] >> 1) * p.block
        at = pl.ds(begin, p.block)
        if p.size % p.block:
            inside = begin + jnp.arange(p.block, dtype=jnp.int32) < p.size
            keys = pltriton.load(key.at[:, at], mask=inside[None], other=0)
            values = pltriton.load(value.at[at], mask=inside[:, None], other=0)
        else:
            keys, values = key[:, at], value[at]
        scores = softcapped(matrix_product(queries, keys, 1, 0), p.softcap)
        return softmax.over(masked_scores(scores, begin, intervals, 1), values)

    blocks = jax.lax.div(jnp.maximum(counts[row] - first, 0) + p.programs - 1, p.programs)
    softmax = jax.lax.fori_loop(0, blocks, visit, Softmax.over_nothing(p.rows, head_dim))
    mixed[...], lse[...] = softmax.finished(LOWEST)


def cache_attention(
    query: jax.Array, cache: KeyValue, seen: jax.Array, *, softcap: float, interpret: bool, largest_block: int
) -> tuple[jax.Array, jax.Array]:
    """Attention of rows of queries over what they see of one cache.

    Args:
      query: ``[X, K, R, D]``, scaled.
      cache: ``key [X, K, D, C]``, ``value [X, K, C, D]``.
      seen: int32 ``[X, 4, R]``, begins and ends of two intervals of positions.
      softcap, interpret, largest_block: as in `trunk_and_ring_attention`.

    Returns:
      float32 ``[Z, X, K, R, D]``, and the log-sum-exp of the scores, ``[Z, X, K, R]``.
    """
    lists, heads, length, head_dim = query.shape
    size, rows = cache.value.shape[2], min(max(_ROWS[0], pl.next_power_of_2(length)), _ROWS[1])
    parts, blocks = -(-length // rows), -(-size // largest_block)
    programs = min(-(-_PROGRAMS // (lists * parts * heads)), blocks)
    p = _Read(rows, largest_block, size, programs, softcap, interpret)

    def pad(x, axis):
        return jnp.pad(x, [(0, parts * rows - length if n == axis else 0) for n in range(x.ndim)])

    query, seen = pad(query, 2), pad(seen, 2)
    listed = block_list(block_kinds(seen, rows, largest_block, blocks * largest_block))

    def by_head(*shape):
        return pl.BlockSpec((None, None, *shape), lambda z, i, k: (i // parts, k, 0, 0))

    mixed, lse = pl.pallas_call(
        partial(cache_kernel, p),
        grid=(programs, lists * parts, heads),
        in_specs=[
            *[pl.no_block_spec] * 2,
            pl.BlockSpec((None, 4, rows), lambda z, i, k: (i // parts, 0, i % parts)),
            pl.BlockSpec((None, None, rows, head_dim), lambda z, i, k: (i // parts, k, i % parts, 0)),
            by_head(head_dim, size),
            by_head(size, head_dim),
        ],
        out_specs=[
            pl.BlockSpec((None, None, None, rows, head_dim), lambda z, i, k: (z, i // parts, k, i % parts, 0)),
            pl.BlockSpec((None, None, None, rows), lambda z, i, k: (z, i // parts, k, i % parts)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((programs, *query.shape), jnp.float32),
            jax.ShapeDtypeStruct((programs, *query.shape[:3]), jnp.float32),
        ],
        compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name=cache_kernel.__name__,
    )(*listed, seen, query, *cache)
    return mixed[..., :length, :], lse[..., :length]


def trunk_and_ring_attention(
    query: jax.Array,
    trunk: KeyValue,
    ring: KeyValue,
    seen: Seen,
    *,
    softcap: float = 0.0,
    interpret: bool = False,
    largest_block: int = 0,
) -> tuple[jax.Array, jax.Array]:
    """`fr3e_jax.policy.decode_kernel.trunk_and_ring_attention` on GPU.

    ``largest_block``: positions of a block, a power of two; 0: as many as fit.
    """
    batch, lanes, heads, group, head_dim = query.shape
    fitting = min(max(_BLOCK_BYTES // (head_dim * trunk.key.dtype.itemsize), 16), 128)
    attend = partial(cache_attention, softcap=softcap, interpret=interpret, largest_block=largest_block or fitting)

    def repeated(*bounds):  # [B, N] each -> [B, N, 4, G]
        return jnp.repeat(jnp.stack(bounds, axis=2)[..., None], group, axis=3)

    none, end = jnp.zeros_like(seen.fork), seen.first + seen.count
    of_trunk = jnp.swapaxes(repeated(seen.start, seen.fork, none, none), 1, 2).reshape(batch, 4, lanes * group)
    by_slot = jnp.swapaxes(query, 1, 2).reshape(batch, heads, lanes * group, head_dim)
    size = ring.value.shape[2]
    of_ring = repeated(seen.first, jnp.minimum(end, size), none, jnp.maximum(end - size, 0))
    by_lane = query.reshape(-1, *query.shape[2:])

    def from_slots(x):  # [Z, B, K, N * G, ...] -> [Z, B, N, K, G, ...]
        return jnp.swapaxes(x.reshape(*x.shape[:3], lanes, group, *x.shape[4:]), 2, 3)

    def from_lanes(x):  # [Z, L, K, G, ...] -> [Z, B, N, K, G, ...]
        return x.reshape(len(x), batch, lanes, *x.shape[2:])

    trunk_parts, ring_parts = attend(by_slot, trunk, of_trunk), attend(by_lane, ring, of_ring.reshape(-1, 4, group))
    pairs = zip(map(from_slots, trunk_parts), map(from_lanes, ring_parts), strict=True)
    mixed, lse = (jnp.concatenate(parts) for parts in pairs)
    largest = lse.max(axis=0, keepdims=True)
    weights = jnp.exp(lse - largest)
    total = weights.sum(axis=0)
    return (weights[..., None] * mixed).sum(axis=0) / total[..., None], largest[0] + jnp.log(total)
