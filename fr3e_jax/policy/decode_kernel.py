"""Attention of a decode step over trunks and rings as one Pallas kernel for TPU: only blocks that are seen are read.

XLA's products (`fr3e_jax.policy.decode_attention`) read caches to their capacity. The kernel reads each block of a
trunk once for all of its lanes, and of each ring the blocks that its lane has filled. Its grid is as long as the list
of these blocks, which is computed beside it for each step. The softmax goes from block to block with a running maximum
(Dao 2023, FlashAttention-2, algorithm 1); the result comes with its log-sum-exp, to be merged with other keys.

Dimension key: B trunk slots, N lanes of each, L = B·N lanes, S trunk positions, C ring columns, K key/value heads,
G query heads per key/value head, D head size, H rows of a lane (G, padded), J blocks of a slot's trunk and rings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fr3e_jax.policy.attention import KeyValue, softcapped
from fr3e_jax.policy.row_kernels import LOWEST, MASKED, REGISTER, matrix_product
from fr3e_jax.policy.visibility import block_list

LARGEST_BLOCK = 2048  # positions: a megabyte of keys and values with heads of 128 in bfloat16
_SUBLANES = 8  # rows of a register
_ROWS = 256  # of a slot, whose scores of the largest block fit beside its keys and values
_VMEM_BYTES = 24 * 2**20  # twice what blocks of float32 need; the weights that XLA fetches ahead have the rest


class Seen(NamedTuple):
    """The visible positions of each lane's trunk and ring; int32 ``[B, N]``. An idle lane sees nothing."""

    start: jax.Array  # the first trunk position
    fork: jax.Array  # the trunk position before which it sees
    first: jax.Array  # the first ring column
    count: jax.Array  # how many columns from there on, around the ring


class _Side(NamedTuple):
    """The blocks into which the positions of trunks, or of rings, are cut. The last one may be cut short."""

    size: int
    block: int

    @classmethod
    def of(cls, size: int, most: int) -> _Side:
        return cls(size, min(size, most))

    @property
    def blocks(self) -> int:
        return -(-self.size // self.block)

    def positions(self, block: jax.Array, shape: tuple[int, int], axis: int) -> jax.Array:
        """The positions of a block along an axis of ``shape``."""
        return block * self.block + jax.lax.broadcasted_iota(jnp.int32, shape, axis)


class KernelStep(NamedTuple):
    """The static part of a call of the kernel."""

    lanes: int
    rows: int  # of a lane
    trunk: _Side
    ring: _Side
    softcap: float
    interpret: bool

    @property
    def entries(self) -> int:
        """Blocks of a slot."""
        return self.trunk.blocks + self.lanes * self.ring.blocks


def trunk_block(largest: int, rows: int) -> int:
    """Positions of a trunk's block: ``largest``, or fewer where the scores of many rows need the room."""
    parts = -(-rows // _ROWS)
    return largest if parts == 1 else max(largest // parts // REGISTER, 1) * REGISTER


def seen_blocks(step: KernelStep, seen: Seen) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The blocks in which any lane of a slot sees anything: those of the trunk, then those of its rings.

    Returns:
      entries: int32 ``[B * J]``, the blocks' numbers; rings follow the trunk, one lane after another.
      counts: int32 ``[B]``, how many entries of a slot count.
      of_trunk: int32 ``[B]``, how many of these are blocks of the trunk.
    """

    def overlap(side: _Side, begin: jax.Array, end: jax.Array) -> jax.Array:
        low = jnp.arange(side.blocks, dtype=jnp.int32)[None, None] * side.block
        return jnp.maximum(begin[..., None], low) < jnp.minimum(end[..., None], low + side.block)

    trunk = overlap(step.trunk, seen.start, seen.fork).any(axis=1)
    end = seen.first + seen.count
    around = overlap(step.ring, seen.first - step.ring.size, end - step.ring.size)
    rings = (overlap(step.ring, seen.first, end) | around).reshape(len(trunk), -1)
    listed = block_list(jnp.concatenate([trunk, rings], axis=1).astype(jnp.int32)[:, None])
    return listed.entries >> 1, listed.counts, trunk.sum(axis=1, dtype=jnp.int32)


def decode_kernel(
    p: KernelStep,
    entries,
    counts,
    of_trunk,
    first,
    count,
    bounds,
    query,
    trunk_key,
    trunk_value,
    ring_key,
    ring_value,
    mixed,
    lse,
    largest,
    total,
    weighted,
):
    """One block of a trunk for all rows of its slot, or one block of a ring for its lane's rows."""
    slot, step = pl.program_id(0), pl.program_id(2)

    @pl.when(step == 0)
    def _start():
        largest[...] = jnp.full_like(largest, LOWEST)
        total[...] = jnp.zeros_like(total)
        weighted[...] = jnp.zeros_like(weighted)

    def visit(side: _Side, block, rows, key, value, is_seen: Callable[[jax.Array], jax.Array]):
        scores = softcapped(matrix_product(query[0, 0, rows].astype(key.dtype), key[0, 0], 1, 0), p.softcap)
        scores = jnp.where(is_seen(side.positions(block, scores.shape, 1)), scores, MASKED)
        before = largest[rows, :1]
        now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
        weights, shrink = jnp.exp(scores - now), jnp.exp(before - now)

        def across(x):
            return jnp.broadcast_to(x, (x.shape[0], REGISTER))

        largest[rows] = across(now)
        total[rows] = across(total[rows, :1] * shrink + weights.sum(axis=1, keepdims=True))
        values = value[0, 0]
        if side.size % side.block:  # beyond the end of the array there may be anything, NaN included
            inside = side.positions(block, values.shape, 0) < side.size
            values = jnp.where(inside, values, jnp.zeros_like(values))
        weighted[rows] = weighted[rows] * shrink + matrix_product(weights.astype(values.dtype), values, 1, 0)

    live, entry = step < counts[slot], entries[slot * p.entries + step]

    @pl.when(live & (step < of_trunk[slot]))
    def _trunk():
        begin, end = bounds[0, :, 0:1], bounds[0, :, 1:2]
        visit(p.trunk, entry, slice(None), trunk_key, trunk_value, lambda at: (at >= begin) & (at < end))

    @pl.when(live & (step >= of_trunk[slot]))
    def _ring():
        lane, block = _ring_place(p, entry)
        begin, columns = first[slot * p.lanes + lane], count[slot * p.lanes + lane]

        def is_seen(at):
            after = at - begin
            return (jnp.where(after < 0, after + p.ring.size, after) < columns) & (at < p.ring.size)

        rows = pl.ds(pl.multiple_of(lane * p.rows, p.rows), p.rows)
        visit(p.ring, block, rows, ring_key, ring_value, is_seen)

    @pl.when(step == pl.num_programs(2) - 1)
    def _finish():
        sums = total[...]
        empty = sums == 0  # a lane that sees nothing
        lse[0, 0] = jnp.where(empty, LOWEST, largest[...] + jnp.log(jnp.where(empty, 1.0, sums)))
        mixed[0, 0] = weighted[...] / jnp.where(empty, 1.0, sums)[:, :1]


def _ring_place(p: KernelStep, entry):
    """Lane and block of an entry of a ring."""
    ring = jnp.maximum(entry - p.trunk.blocks, 0)
    return jax.lax.div(ring, p.ring.blocks), jax.lax.rem(ring, p.ring.blocks)


def trunk_and_ring_attention(
    query: jax.Array,
    trunk: KeyValue,
    ring: KeyValue,
    seen: Seen,
    *,
    softcap: float = 0.0,
    interpret: bool = False,
    largest_block: int = LARGEST_BLOCK,
) -> tuple[jax.Array, jax.Array]:
    """Attention of one query per lane over what it sees of its trunk and of its ring.

    Args:
      query: ``[B, N, K, G, D]``, scaled.
      trunk: ``key [B, K, D, S]``, ``value [B, K, S, D]``.
      ring: ``key [L, K, D, C]``, ``value [L, K, C, D]``.
      seen: of each lane.
      softcap: bound of scores; 0: none.
      interpret: run the kernel as jax operations, on any device.
      largest_block: positions of a block, at most; a multiple of a register.

    Returns:
      ``[B, N, K, G, D]`` and the log-sum-exp of the scores, ``[B, N, K, G]``, both float32. A lane that sees nothing
      has 0, and a log-sum-exp so low that its weight is 0 beside any other.
    """
    batch, lanes, heads, group, head_dim = query.shape
    rows = -(-group // _SUBLANES) * _SUBLANES
    of_trunk = _Side.of(trunk.value.shape[2], trunk_block(largest_block, lanes * rows))
    step = KernelStep(lanes, rows, of_trunk, _Side.of(ring.value.shape[2], largest_block), softcap, interpret)
    padded = jnp.pad(query.astype(jnp.float32), [(0, 0)] * 3 + [(0, rows - group), (0, 0)])
    padded = jnp.swapaxes(padded, 1, 2).reshape(batch, heads, lanes * rows, head_dim)
    bounds = jnp.repeat(jnp.stack([seen.start, seen.fork], axis=2), rows, axis=1)
    entries, counts, of_trunk = seen_blocks(step, seen)
    scalars = (entries, counts, of_trunk, seen.first.reshape(-1), seen.count.reshape(-1))
    mixed, lse = _call(step, scalars, bounds, padded, trunk, ring)

    def by_lane(x):  # [B, K, N * H, ...] -> [B, N, K, G, ...]
        return jnp.swapaxes(x.reshape(batch, heads, lanes, rows, -1)[:, :, :, :group], 1, 2)

    return by_lane(mixed), by_lane(lse)[..., 0]


def _call(p: KernelStep, scalars, bounds, query, trunk: KeyValue, ring: KeyValue) -> list[jax.Array]:
    batch, heads, rows, head_dim = query.shape

    def trunk_place(b, k, step, entries, counts, of_trunk, *rest):  # after its last block the trunk keeps it
        entry = entries[b * p.entries + jnp.clip(of_trunk[b] - 1, 0, step)]
        return b, k, jnp.minimum(entry, p.trunk.blocks - 1)

    def ring_place(b, k, step, entries, counts, of_trunk, *rest):  # before its first block the rings have it already
        at = jnp.clip(step, of_trunk[b], jnp.maximum(counts[b] - 1, of_trunk[b]))
        lane, block = _ring_place(p, entries[b * p.entries + jnp.minimum(at, p.entries - 1)])
        return b * p.lanes + lane, k, block

    def key(index_map: Callable, side: _Side) -> pl.BlockSpec:
        def index(*at):
            b, k, block = index_map(*at)
            return b, k, 0, block

        return pl.BlockSpec((1, 1, head_dim, side.block), index)

    def value(index_map: Callable, side: _Side) -> pl.BlockSpec:
        return pl.BlockSpec((1, 1, side.block, head_dim), lambda *at: (*index_map(*at), 0))

    def whole_rows(width):
        return pl.BlockSpec((1, 1, rows, width), lambda b, k, *rest: (b, k, 0, 0))

    def scratch(width):
        return pltpu.VMEM((rows, width), jnp.float32)

    of_block = 2 * heads * head_dim * trunk.key.dtype.itemsize
    positions = batch * (p.trunk.size + p.lanes * p.ring.size // 2)  # rings are half full on average
    scored = batch * p.lanes * p.rows * (p.trunk.size + p.ring.size // 2) * heads
    return pl.pallas_call(
        partial(decode_kernel, p),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(batch, heads, jnp.maximum(scalars[1].max(), 1)),
            in_specs=[
                pl.BlockSpec((1, rows, 2), lambda b, *rest: (b, 0, 0)),
                whole_rows(head_dim),
                key(trunk_place, p.trunk),
                value(trunk_place, p.trunk),
                key(ring_place, p.ring),
                value(ring_place, p.ring),
            ],
            out_specs=[whole_rows(head_dim), whole_rows(REGISTER)],
            scratch_shapes=[scratch(REGISTER), scratch(REGISTER), scratch(head_dim)],
        ),
        out_shape=[
            jax.ShapeDtypeStruct(query.shape, jnp.float32),
            jax.ShapeDtypeStruct((*query.shape[:3], REGISTER), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=_VMEM_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * scored * head_dim, transcendentals=scored, bytes_accessed=positions * of_block
        ),
        interpret=p.interpret,
        name=decode_kernel.__name__,
    )(*scalars, bounds, query, *trunk, *ring)
