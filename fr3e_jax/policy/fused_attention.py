"""Attention of whole rows by fused kernels, with its gradient.

The kernels are those of `fr3e_jax.policy.row_kernels` for TPU, or of `fr3e_jax.policy.triton_row_kernels` for GPU.

Dimension key: B rows, S trunk positions, N lanes, T positions of a lane, P = S + N·T positions of a row, K key/value
heads, G query heads per key/value head, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fr3e_jax.policy.attention import PLAIN, KeyValue, RowView, Scoring
from fr3e_jax.policy.row_kernels import REGISTER, TPU_KERNELS, Blocks, Pass, RowKernels
from fr3e_jax.policy.row_parts import RowSizes, cut_row, join_row
from fr3e_jax.policy.triton_row_kernels import GPU_KERNELS, gpu_blocks
from fr3e_jax.policy.visibility import block_kinds, seen_intervals

LARGEST = Blocks(query=1024, key=512, backward_query=512, backward_key=1536)  # on TPU


class KernelCall(NamedTuple):
    """The static part of attention over rows of one shape."""

    kernels: RowKernels
    group: int
    head_dim: int
    pairs: int  # of a query and a key that it sees in one row, or in a part of it, at most
    blocks: Blocks
    interpret: bool  # run the kernels as jax operations, on any device
    softcap: float = 0.0  # of scores; 0: none


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_attention(call: KernelCall, query: jax.Array, key: jax.Array, value: jax.Array, seen: jax.Array) -> jax.Array:
    """Attention of each query over the positions that it sees; 0 where it sees none.

    Args:
      query: ``[B, K, Q, G * D]``, scaled; Q is P, or the positions of a part of a row.
      key, value: ``[B, K, P, D]``.
      seen: of `fr3e_jax.policy.visibility.seen_intervals`, ``[B, 4, Q]``. The blocks' sizes divide Q and P.

    Returns:
      ``[B, K, Q, G * D]`` in the query's dtype. Scores and softmax are float32.
    """
    return _forward(call, query, key, value, seen)[0]


def _forward(call: KernelCall, query, key, value, seen):
    batch, heads, length, width = query.shape
    p = _pass(call, query, key, call.blocks.query, call.blocks.key, products=2, arrays=2)
    arrays = dict(seen=seen, query=query, key=key, value=value)
    outputs = dict(
        mixed=jax.ShapeDtypeStruct(query.shape, query.dtype),
        lse=jax.ShapeDtypeStruct((batch, heads, call.group, length), jnp.float32),
    )
    kinds = block_kinds(seen, p.query, p.key, key.shape[2])
    mixed, lse = call.kernels.call(call.kernels.forward, p, kinds, arrays, outputs, by_query=True)
    return mixed, (query, key, value, seen, mixed, lse)


def _backward(call: KernelCall, saved, slope):
    query, key, value, seen, mixed, lse = saved
    arrays = dict(seen=seen, query=query, key=key, value=value, mixed=mixed, slope=slope, lse=lse)
    p = _pass(call, query, key, call.blocks.query, call.blocks.key, products=3, arrays=4)
    outputs = dict(d_query=jax.ShapeDtypeStruct(query.shape, query.dtype))
    outputs["along"] = jax.ShapeDtypeStruct(lse.shape, lse.dtype)
    kinds = block_kinds(seen, p.query, p.key, key.shape[2])
    d_query, along = call.kernels.call(call.kernels.query_gradient, p, kinds, arrays, outputs, by_query=True)

    arrays = {name: x for name, x in arrays.items() if name != "mixed"} | {"along": along}
    blocks = call.blocks.backward_query, call.blocks.backward_key
    p = _pass(call, query, key, *blocks, products=4, arrays=4, by_query=False)
    outputs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in (("d_key", key), ("d_value", value))}
    kinds = jnp.swapaxes(block_kinds(seen, p.query, p.key, key.shape[2]), 1, 2)
    d_key, d_value = call.kernels.call(call.kernels.key_gradient, p, kinds, arrays, outputs, by_query=False)
    return d_query, d_key, d_value, None


fused_attention.defvjp(_forward, _backward)


def _pass(
    call: KernelCall,
    query: jax.Array,
    key: jax.Array,
    query_block: int,
    key_block: int,
    *,
    products: int,
    arrays: int,
    by_query: bool = True,
) -> Pass:
    """The pass with these blocks.

    Its cost is that of rows whose branches see whole trunks. Of the other side a pass reads two arrays, once for each
    of its own blocks that sees them; blocks at the edge of what is seen are read whole.

    Args:
      products: matrix products for each pair of a query and a key.
      arrays: of its own side that it reads or writes, once.
    """
    batch, heads = key.shape[:2]

    def bytes_of(x):
        return x.shape[2] * x.shape[3] * x.dtype.itemsize

    resident, other, block = (query, key, query_block) if by_query else (key, query, key_block)
    readings = call.pairs / (other.shape[2] * block) + 1
    pairs = batch * heads * call.group * call.pairs
    cost = pl.CostEstimate(
        flops=2 * products * pairs * call.head_dim,
        transcendentals=pairs,
        bytes_accessed=int(batch * heads * (arrays * bytes_of(resident) + 2 * bytes_of(other) * readings)),
    )
    return Pass(query_block, key_block, call.group, call.head_dim, call.interpret, cost, call.softcap)


def fused_row_attention(
    query: jax.Array,
    row: KeyValue,
    view: RowView,
    *,
    window: int = 1,
    scoring: Scoring = PLAIN,
    head_shards: int = 1,
    parts: int = 1,
    gather: Callable[[jax.Array], jax.Array] = lambda keys: keys,
    interpret: bool = False,
    platform: str = "tpu",
    largest: Blocks | None = None,
    on_each_device: Callable[[Callable], Callable] = lambda attend: attend,
) -> jax.Array:
    """`fr3e_jax.policy.attention.row_attention` in fused kernels; 0 on padding.

    Args:
      query, row, view, window, scoring: as there; query and row of the parts of rows, where there are several, and view
        always of whole rows.
      head_shards: of a mesh that splits heads. Where it does not divide the key/value heads, each is repeated for the
        shards that read it, so that the same share of the arrays lies on each of them.
      parts: that rows are cut into (`fr3e_jax.policy.row_parts`).
      gather: on each device, makes whole rows' keys ``[A, B, heads, P / A, D]`` of those of its parts.
      interpret: run the kernels as jax operations, on any device.
      platform: of the kernels, ``tpu`` or ``gpu``.
      largest: on TPU sizes that the blocks must not exceed, multiples of a register; on GPU their sizes, powers of two.
      on_each_device: makes a function of ``query, key, value [B, heads, P, ...]`` and ``seen [B, 4, P]`` into one that
        runs on each device's rows and heads; without a mesh the function itself.
    """
    batch, _, length, kv_heads, group, head_dim = query.shape
    repeated = head_shards // math.gcd(head_shards, kv_heads)
    heads, group = kv_heads * repeated, group // repeated
    query = scoring.scaled(query[:, 0]).reshape(batch, length, heads, group * head_dim)
    key, value = jnp.swapaxes(row.key[:, 0], 2, 3), row.value[:, 0]
    if repeated > 1:
        key, value = (jnp.repeat(x, repeated, axis=1) for x in (key, value))
    sizes = RowSizes.of(view)
    kernels = dict(tpu=TPU_KERNELS, gpu=GPU_KERNELS)[platform]
    if platform == "gpu":
        blocks = largest or gpu_blocks(head_dim, query.dtype.itemsize)
        queries, keys = whole_blocks(length, sizes.positions, blocks)
    else:
        (queries, keys), blocks = block_sizes(length, sizes.positions, largest or LARGEST)

    def pad(x, size, axis=2):
        return jnp.pad(x, [(0, size - x.shape[axis] if i == axis else 0) for i in range(x.ndim)])

    call = KernelCall(kernels, group, head_dim, seen_pairs(view, window) // parts, blocks, interpret, scoring.softcap)

    def attend(query, key, value, seen):
        if parts > 1:
            key, value = (join_row(gather(x), sizes, axis=3) for x in (key, value))
        return fused_attention(call, query, pad(key, keys), pad(value, keys), seen)

    seen = seen_intervals(view, window, scoring.window)
    if parts > 1:
        trunk, lanes = jnp.split(seen, [sizes.trunk], axis=2)
        seen = cut_row(trunk, lanes.reshape(*lanes.shape[:2], sizes.lanes, sizes.length), parts)
    mixed = on_each_device(attend)(pad(jnp.swapaxes(query, 1, 2), queries), key, value, pad(seen, queries))
    mixed = jnp.swapaxes(mixed[:, :, :length], 1, 2)
    return mixed.reshape(batch, 1, length, kv_heads, group * repeated, head_dim)


def block_sizes(queries: int, keys: int, largest: Blocks = LARGEST) -> tuple[tuple[int, int], Blocks]:
    """Positions rounded up to whole blocks, and the blocks' sizes: the largest that divide them, up to those given."""

    def padded(length: int) -> int:
        unit = REGISTER if length <= 512 else 512
        return -(-length // unit) * unit

    sizes = padded(queries), padded(keys)

    def fitting(size, most):
        return max(block for block in range(REGISTER, most + 1, REGISTER) if size % block == 0)

    return sizes, Blocks(*map(fitting, sizes * 2, largest))


def whole_blocks(queries: int, keys: int, blocks: Blocks) -> tuple[int, int]:
    """Positions rounded up to whole blocks; one of the two sizes of each side divides the other."""

    def padded(length: int, *sizes: int) -> int:
        return -(-length // max(sizes)) * max(sizes)

    return padded(queries, blocks.query, blocks.backward_query), padded(keys, blocks.key, blocks.backward_key)


def seen_pairs(view: RowView, window: int) -> int:
    """Pairs of a query and a key that it sees in one row, where every branch sees the whole trunk, as plans assume."""
    _, lanes, length = view.segment.shape
    size = view.trunk_segment.shape[1]
    before = (min(window, lanes) - 1) * length
    return size * (size + 1) // 2 + lanes * length * (size + before) + lanes * length * (length + 1) // 2
