"""Attention of whole rows as fused Pallas kernels for GPU, compiled by Triton: no score leaves the chip.

The mathematics, the arrays and the masks are those of `fr3e_jax.policy.row_kernels`. Triton has no memory that lasts
from one step of a grid to the next. So one program computes a whole block of its own side: it loops over the blocks of
the other side in which anything is seen, and keeps its sums in registers. Blocks that are seen as a whole come first
and need no mask. A program of queries serves one query head; the heads of a group find their keys in the L2 cache.

Dimension key: as in `fr3e_jax.policy.row_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fr3e_jax.policy.row_kernels import LOWEST, MASKED, Blocks, Pass, RowKernels, bounded, matrix_product
from fr3e_jax.policy.visibility import PARTLY_SEEN, UNSEEN, WHOLLY_SEEN, block_list, is_within

try:
    from jax.experimental.pallas import triton as pltriton
except ImportError:  # jax 0.11 announces that it will go; everything else runs without it
    pltriton = None


def gpu_blocks(head_dim: int, itemsize: int) -> Blocks:
    """Sizes of blocks whose operands fit the registers and the shared memory of an A100 or H100."""
    size = head_dim * itemsize
    if size <= 256:
        return Blocks(query=128, key=64, backward_query=64, backward_key=64)
    return Blocks(query=64, key=32, backward_query=32, backward_key=32)


def _seen_blocks(refs: tuple) -> Callable:
    """``over(visit, carry)``, which calls ``visit(block, masked, carry)`` for each block in which something is seen."""
    row = pl.program_id(1) * pl.num_programs(0) + pl.program_id(0)
    lists = ((False, *refs[:2]), (True, *refs[2:]))

    def over(visit: Callable, carry):
        for masked, entries, counts in lists:
            first = row * (entries.shape[0] // counts.shape[0])

            def step(n, carry, masked=masked, entries=entries, first=first):
                return visit(entries[first + n] >> 1, masked, carry)

            carry = jax.lax.fori_loop(0, counts[row], step, carry)
        return carry

    return over


def masked_scores(scores: jax.Array, first: jax.Array, intervals: list[jax.Array], axis: int) -> jax.Array:
    """Scores of which those of unseen keys are `MASKED`. Keys lie along ``axis``, from position ``first`` on."""
    position = first + jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis)
    return jnp.where(is_within(position, [jnp.expand_dims(x, axis) for x in intervals]), scores, MASKED)


class Softmax(NamedTuple):
    """The softmax of a block of queries over the keys so far, and the values mixed by it."""

    largest: jax.Array  # float32 [q]
    total: jax.Array  # float32 [q]
    weighted: jax.Array  # float32 [q, D]

    @classmethod
    def over_nothing(cls, queries: int, head_dim: int) -> Softmax:
        zeros = jnp.zeros(queries, jnp.float32)
        return cls(zeros + LOWEST, zeros, jnp.zeros((queries, head_dim), jnp.float32))

    def over(self, scores: jax.Array, values: jax.Array) -> Softmax:
        """With the keys of a block, too: their ``scores [q, j]`` and ``values [j, D]``."""
        largest = jnp.maximum(self.largest, scores.max(axis=1))
        weights, shrink = jnp.exp(scores - largest[:, None]), jnp.exp(self.largest - largest)
        mixed = matrix_product(weights.astype(values.dtype), values, 1, 0)
        return Softmax(largest, self.total * shrink + weights.sum(axis=1), self.weighted * shrink[:, None] + mixed)

    def finished(self, of_nothing: float) -> tuple[jax.Array, jax.Array]:
        """Mixed values and log-sum-exp; 0 and ``of_nothing`` of a query that has seen nothing."""
        empty = self.total == 0
        total = jnp.where(empty, 1.0, self.total)
        return self.weighted / total[:, None], jnp.where(empty, of_nothing, self.largest + jnp.log(total))


def _by_query(p: Pass, query, key, seen, block, masked: bool):
    """Scores of a block of keys, float32 ``[q, j]``, and the map of their gradient to that of the products."""
    scores, back = bounded(matrix_product(query, key, 1, 1), p.softcap)
    return (masked_scores(scores, block * p.key, seen, 1) if masked else scores), back


def forward_kernel(p: Pass, *refs):
    """A block of queries of one head against all blocks of keys and values in which it sees anything."""
    over_blocks, (seen, query, key, value, mixed, lse) = _seen_blocks(refs[:4]), refs[4:]
    queries, intervals = query[...], [seen[n] for n in range(4)]

    def visit(block, masked: bool, softmax: Softmax):
        at = pl.ds(block * p.key, p.key)
        scores, _ = _by_query(p, queries, key[at], intervals, block, masked)
        return softmax.over(scores, value[at])

    result, lse[...] = over_blocks(visit, Softmax.over_nothing(p.query, p.head_dim)).finished(-LOWEST)
    mixed[...] = result.astype(mixed.dtype)


def query_gradient_kernel(p: Pass, *refs):
    """The gradient of a block of queries of one head.

    Also ``along [q]``, the product of each result and its slope, which the gradients of keys and values need.
    """
    over_blocks, (seen, query, key, value, mixed, slope, lse, d_query, along) = _seen_blocks(refs[:4]), refs[4:]
    queries, slopes, intervals = query[...], slope[...], [seen[n] for n in range(4)]
    product = (mixed[...].astype(jnp.float32) * slopes.astype(jnp.float32)).sum(axis=1)
    along[...] = product
    sums = lse[...]

    def visit(block, masked: bool, accumulated):
        at = pl.ds(block * p.key, p.key)
        keys = key[at]
        scores, back = _by_query(p, queries, keys, intervals, block, masked)
        weights = jnp.exp(scores - sums[:, None])
        d_scores = back(weights * (matrix_product(slopes, value[at], 1, 1) - product[:, None]))
        return accumulated + matrix_product(d_scores.astype(keys.dtype), keys, 1, 0)

    start = jnp.zeros((p.query, p.head_dim), jnp.float32)
    d_query[...] = over_blocks(visit, start).astype(d_query.dtype)


def key_gradient_kernel(p: Pass, *refs):
    """The gradients of a block of keys and values, of all query heads of its group."""
    over_blocks, (seen, query, key, value, slope, lse, along, d_key, d_value) = _seen_blocks(refs[:4]), refs[4:]
    keys, values, key_block = key[...], value[...], pl.program_id(0)

    def of_head(g, carry):
        columns = pl.ds(g * p.head_dim, p.head_dim)

        def visit(block, masked: bool, carry):
            sum_key, sum_value = carry
            at = pl.ds(block * p.query, p.query)
            queries, slopes = query[at, columns], slope[at, columns]
            scores, back = bounded(matrix_product(keys, queries, 1, 1), p.softcap)
            if masked:
                scores = masked_scores(scores, key_block * p.key, [seen[n, at] for n in range(4)], 0)
            weights = jnp.exp(scores - lse[g, at][None])
            sum_value += matrix_product(weights.astype(values.dtype), slopes, 1, 0)
            d_scores = back(weights * (matrix_product(values, slopes, 1, 1) - along[g, at][None]))
            return sum_key + matrix_product(d_scores.astype(queries.dtype), queries, 1, 0), sum_value

        return over_blocks(visit, carry)

    start = jnp.zeros((p.key, p.head_dim), jnp.float32)
    sum_key, sum_value = jax.lax.fori_loop(0, p.group, of_head, (start, start))
    d_key[...], d_value[...] = sum_key.astype(d_key.dtype), sum_value.astype(d_value.dtype)


def call_kernel(kernel: Callable, p: Pass, kinds: jax.Array, inputs: dict, outputs: dict, *, by_query: bool):
    """Run a kernel on a grid of blocks of its own side, rows, and query heads or groups of them.

    Args:
      kinds: of `fr3e_jax.policy.visibility.block_kinds`, the blocks of the kernel's own side first.
      inputs: arrays by name; of the names depends how an array is cut into blocks.
      outputs: shapes and types by name.
      by_query: the kernel's own side are the queries.
    """
    batch, heads = inputs["query"].shape[:2]
    listed = [x for kind in (WHOLLY_SEEN, PARTLY_SEEN) for x in block_list(jnp.where(kinds == kind, kind, UNSEEN))]

    def cut(name: str) -> pl.BlockSpec:
        x = (inputs | outputs)[name]
        of_query = name not in ("key", "value", "d_key", "d_value")
        if of_query != by_query:  # of the other side all blocks
            shape = (None, *x.shape[1:]) if name == "seen" else (None, None, *x.shape[2:])
            return pl.BlockSpec(shape, lambda i, b, h: (b, h // p.group if by_query else h, 0, 0)[: x.ndim])
        if name == "seen":
            return pl.BlockSpec((None, 4, p.query), lambda i, b, h: (b, 0, i))
        if name in ("lse", "along"):
            return pl.BlockSpec((None, None, None, p.query), lambda i, b, h: (b, h // p.group, h % p.group, i))
        if of_query:
            shape = (None, None, p.query, p.head_dim)
            return pl.BlockSpec(shape, lambda i, b, h: (b, h // p.group, i, h % p.group))
        return pl.BlockSpec((None, None, p.key, p.head_dim), lambda i, b, h: (b, h, i, 0))

    return pl.pallas_call(
        partial(kernel, p),
        grid=(kinds.shape[1], batch, heads * p.group if by_query else heads),
        in_specs=[pl.no_block_spec] * len(listed) + [cut(name) for name in inputs],
        out_specs=[cut(name) for name in outputs],
        out_shape=list(outputs.values()),
        compiler_params=pltriton.CompilerParams(num_warps=4 if p.query * p.key <= 4096 else 8, num_stages=2),
        interpret=p.interpret,
        name=kernel.__name__,
    )(*listed, *inputs.values())


GPU_KERNELS = RowKernels(forward_kernel, query_gradient_kernel, key_gradient_kernel, call_kernel)
