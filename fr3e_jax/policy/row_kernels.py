"""Attention of whole rows as fused Pallas kernels for TPU: no score leaves the chip's fast memory (VMEM).

The mathematics is that of `fr3e_jax.policy.attention.row_attention`. The softmax is computed block by block with a
running maximum, and its log-sum-exp is kept for the backward pass. (Dao 2023, FlashAttention-2, algorithms 1 and 2.)
The mask of a block follows from the intervals of `fr3e_jax.policy.visibility`; blocks in which nothing is seen are
neither read nor computed.

Scores lie transposed, keys times queries: what belongs to a query (intervals, maximum, sum) is then one row of a
register, and a row of an array ``[heads, positions]`` in HBM. Query heads of one key/value head are served in turn by
the block of keys and values that is in VMEM.

Dimension key: B rows, P positions of a row (queries may be a part of them), K key/value heads, G query heads per
key/value head, D head size, Q and J numbers of blocks of queries and of keys; q and j are sizes of these blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fr3e_jax.policy.visibility import block_list, is_within

REGISTER = 128  # of a vector register of a TPU; blocks are multiples of it
LOWEST = -1e30  # the running maximum of a query that has seen nothing yet
MASKED = -2e38  # a score that is not seen: so far below `LOWEST` that its weight is 0 beside it, too
_VMEM_BYTES = 48 * 2**20


class Blocks(NamedTuple):
    """Sizes of blocks. A pass keeps one block of its own side on the chip, and streams the blocks of the other side."""

    query: int  # of the forward pass and of the queries' gradient
    key: int
    backward_query: int  # of the gradients of keys and values
    backward_key: int


class Pass(NamedTuple):
    """The static part of a kernel's call: it keeps one block of its own side on the chip, and streams the others'."""

    query: int  # size of a block of queries
    key: int
    group: int
    head_dim: int
    interpret: bool
    cost: pl.CostEstimate
    softcap: float = 0.0  # of scores; 0: none


class RowKernels(NamedTuple):
    """The kernels of attention over rows for a kind of device. `fr3e_jax.policy.fused_attention` names their arrays."""

    forward: Callable
    query_gradient: Callable
    key_gradient: Callable
    call: Callable  # as `call_kernel`


def matrix_product(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """float32 matrix product that contracts the given axes, in the default precision of the device."""
    axes = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


def bounded(scores: jax.Array, softcap: float) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Softcapped scores, and the map of their gradient to that of the products."""
    if not softcap:
        return scores, lambda slope: slope
    share = jnp.tanh(scores / softcap)
    return softcap * share, lambda slope: slope * (1 - share * share)


def _in_seen_blocks(entries, counts, blocks: int, step_count: int, visit: Callable) -> None:
    """Call ``visit(block, masked)`` if this step of the innermost loop has a block in which something is seen."""
    row = pl.program_id(0) * blocks + pl.program_id(2)
    step = pl.program_id(3)
    entry = entries[row * step_count + step]
    live, is_whole = step < counts[row], (entry & 1) == 1
    pl.when(live & is_whole)(lambda: visit(entry >> 1, False))
    pl.when(live & ~is_whole)(lambda: visit(entry >> 1, True))


def _scores(p: Pass, key, query, seen, block, masked: bool) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Scores, float32 ``[j, q]``, and the map of their gradient to that of the products."""
    scores, back = bounded(matrix_product(key, query, 1, 1), p.softcap)
    if masked:
        bounds = seen[0]
        position = block * p.key + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        scores = jnp.where(is_within(position, [bounds[n : n + 1] for n in range(4)]), scores, MASKED)
    return scores, back


def _heads(p: Pass) -> list[tuple[int, slice]]:
    """The query heads of a block, and their columns of it."""
    return [(g, slice(g * p.head_dim, (g + 1) * p.head_dim)) for g in range(p.group)]


def forward_kernel(p: Pass, entries, counts, seen, query, key, value, mixed, lse, largest, total, weighted):
    """One step: a block of keys and values for a block of queries. The scratch holds the softmax so far."""
    step, steps = pl.program_id(3), pl.num_programs(3)

    @pl.when(step == 0)
    def _start():
        largest[...] = jnp.full_like(largest, LOWEST)
        total[...] = jnp.zeros_like(total)
        weighted[...] = jnp.zeros_like(weighted)

    def visit(block, masked: bool):
        for g, columns in _heads(p):
            scores, _ = _scores(p, key[0, 0], query[0, 0, :, columns], seen, block, masked)
            before = largest[g : g + 1]
            now = jnp.maximum(before, scores.max(axis=0, keepdims=True))
            weights, shrink = jnp.exp(scores - now), jnp.exp(before - now)
            largest[g : g + 1] = now
            total[g : g + 1] = total[g : g + 1] * shrink + weights.sum(axis=0, keepdims=True)
            weighted[g] = weighted[g] * shrink + matrix_product(value[0, 0], weights.astype(value.dtype), 0, 0)

    _in_seen_blocks(entries, counts, pl.num_programs(2), steps, visit)

    @pl.when(step == steps - 1)
    def _finish():
        sums = total[...]
        empty = sums == 0  # a query that sees nothing: padding
        lse[0, 0] = jnp.where(empty, -LOWEST, largest[...] + jnp.log(jnp.where(empty, 1.0, sums)))
        for g, columns in _heads(p):
            scaled = weighted[g] / jnp.where(empty[g : g + 1], 1.0, sums[g : g + 1])
            mixed[0, 0, :, columns] = scaled.T.astype(mixed.dtype)


def query_gradient_kernel(
    p: Pass, entries, counts, seen, query, key, value, mixed, slope, lse, d_query, along, accumulated
):
    """One step of the queries' gradient: a block of keys and values for a block of queries.

    Also ``along [G, q]``, the product of each result and its slope, which the gradients of keys and values need.
    """
    step, steps = pl.program_id(3), pl.num_programs(3)

    @pl.when(step == 0)
    def _start():
        accumulated[...] = jnp.zeros_like(accumulated)
        for g, columns in _heads(p):
            product = mixed[0, 0, :, columns].astype(jnp.float32) * slope[0, 0, :, columns].astype(jnp.float32)
            along[0, 0, g : g + 1] = product.T.sum(axis=0, keepdims=True)

    def visit(block, masked: bool):
        for g, columns in _heads(p):
            scores, back = _scores(p, key[0, 0], query[0, 0, :, columns], seen, block, masked)
            weights = jnp.exp(scores - lse[0, 0, g : g + 1])
            d_weights = matrix_product(value[0, 0], slope[0, 0, :, columns], 1, 1)
            d_scores = back(weights * (d_weights - along[0, 0, g : g + 1]))
            accumulated[g] = accumulated[g] + matrix_product(key[0, 0], d_scores.astype(key.dtype), 0, 0)

    _in_seen_blocks(entries, counts, pl.num_programs(2), steps, visit)

    @pl.when(step == steps - 1)
    def _finish():
        for g, columns in _heads(p):
            d_query[0, 0, :, columns] = accumulated[g].T.astype(d_query.dtype)


def key_gradient_kernel(
    p: Pass, entries, counts, seen, query, key, value, slope, lse, along, d_key, d_value, sum_key, sum_value
):
    """One step of the gradients of keys and values: a block of queries for a block of keys and values."""
    step, steps = pl.program_id(3), pl.num_programs(3)

    @pl.when(step == 0)
    def _start():
        sum_key[...] = jnp.zeros_like(sum_key)
        sum_value[...] = jnp.zeros_like(sum_value)

    query_head = pl.program_id(2)

    def visit(block, masked: bool):
        del block  # of queries
        for g, columns in _heads(p):
            mine, its_slope = query[0, 0, :, columns], slope[0, 0, :, columns]
            scores, back = _scores(p, key[0, 0], mine, seen, query_head, masked)
            weights = jnp.exp(scores - lse[0, 0, g : g + 1])
            sum_value[...] += matrix_product(weights.astype(value.dtype), its_slope, 1, 0)
            d_scores = back(weights * (matrix_product(value[0, 0], its_slope, 1, 1) - along[0, 0, g : g + 1]))
            sum_key[...] += matrix_product(d_scores.astype(query.dtype), mine, 1, 0)

    _in_seen_blocks(entries, counts, pl.num_programs(2), steps, visit)

    @pl.when(step == steps - 1)
    def _finish():
        d_key[0, 0] = sum_key[...].astype(d_key.dtype)
        d_value[0, 0] = sum_value[...].astype(d_value.dtype)


def _scratch(kernel: Callable, p: Pass) -> list:
    """The memory of a kernel between its steps."""
    by_head, statistic = (p.group, p.head_dim, p.query), (p.group, p.query)
    shapes = {
        forward_kernel: [statistic, statistic, by_head],
        query_gradient_kernel: [by_head],
        key_gradient_kernel: [(p.key, p.head_dim)] * 2,
    }
    return [pltpu.VMEM(shape, jnp.float32) for shape in shapes[kernel]]


def call_kernel(kernel: Callable, p: Pass, kinds: jax.Array, inputs: dict, outputs: dict, *, by_query: bool):
    """Run a kernel on a grid of rows, heads, blocks of its own side and steps through the blocks of the other side.

    Args:
      kinds: of `fr3e_jax.policy.visibility.block_kinds`, the blocks of the kernel's own side first.
      inputs: arrays by name; of the names depends how an array is cut into blocks.
      outputs: shapes and types by name.
      by_query: the kernel's own side are the queries.
    """
    batch, heads, length = inputs["query"].shape[:3]
    blocks, steps = length // p.query, inputs["key"].shape[2] // p.key
    if not by_query:
        blocks, steps = steps, blocks

    listed = block_list(kinds)

    def streamed(b, i, step, entries, counts):  # the steps after the last block keep it: nothing is read anew
        row = b * blocks + i
        return entries[row * steps + jnp.clip(counts[row] - 1, 0, step)] >> 1

    def cut(name: str) -> pl.BlockSpec:
        of_query = name not in ("key", "value", "d_key", "d_value")
        index_map = (lambda b, i, *rest: i) if of_query == by_query else streamed
        size = p.query if of_query else p.key
        if name == "seen":
            return pl.BlockSpec((1, 4, size), lambda b, k, i, *rest: (b, 0, index_map(b, i, *rest)))
        if name in ("lse", "along"):
            return pl.BlockSpec((1, 1, p.group, size), lambda b, k, i, *rest: (b, k, 0, index_map(b, i, *rest)))
        width = p.group * p.head_dim if of_query else p.head_dim
        return pl.BlockSpec((1, 1, size, width), lambda b, k, i, *rest: (b, k, index_map(b, i, *rest), 0))

    return pl.pallas_call(
        partial(kernel, p),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, heads, blocks, steps),
            in_specs=[cut(name) for name in inputs],
            out_specs=[cut(name) for name in outputs],
            scratch_shapes=_scratch(kernel, p),
        ),
        out_shape=list(outputs.values()),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"), vmem_limit_bytes=_VMEM_BYTES
        ),
        cost_estimate=p.cost,
        interpret=p.interpret,
        name=kernel.__name__,
    )(*listed, *inputs.values())


TPU_KERNELS = RowKernels(forward_kernel, query_gradient_kernel, key_gradient_kernel, call_kernel)
