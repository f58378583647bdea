"""Rows whose positions are split over the mesh axis ``context``: keys, values and predicting states cross it.

Each device has one part of a row (`fr3e_jax.policy.row_parts`), and gathers the keys and values of the others in each
layer: with grouped queries they are a fraction of the hidden states. (Llama Team 2024, section 3.3.2.)
`fr3e_jax.programs.fused_rows` does the same around its kernels.

Dimension key: A parts, B rows, F shards of rows, P positions of a row, E width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.attention import PLAIN, KeyValue, RowPart, Scoring, row_attention
from fr3e_jax.policy.head import LOCAL_STATES, StateTransfer
from fr3e_jax.policy.row_parts import RowSizes, join_row, reach, row_part

BATCH = ("replica", "fsdp")
CONTEXT, EXPERT = "context", "expert"


def batch_axes(mesh: Mesh, *, each_replica: bool = False) -> tuple[str, ...]:
    """The mesh axes that split batches and decoder slots; ``each_replica``: those that split the share of a replica.

    A mesh has an axis of experts only where it is asked for.
    """
    axes = (*BATCH, EXPERT) if EXPERT in mesh.shape else BATCH
    return axes[1:] if each_replica else axes


def row_axes(mesh: Mesh, *, each_replica: bool = False) -> tuple[str, ...]:
    """The mesh axes that split the first axis of rows, or of their parts."""
    batch = batch_axes(mesh, each_replica=each_replica)
    return (CONTEXT, *batch) if mesh.shape[CONTEXT] > 1 else batch


def split_row_attention(mesh: Mesh, *, each_replica: bool = False) -> Callable:
    """`fr3e_jax.policy.attention.row_attention` of parts of rows, by matrix products, over whole keys and values.

    ``each_replica``: as for `batch_axes`.
    """
    parts, batch = mesh.shape[CONTEXT], batch_axes(mesh, each_replica=each_replica)

    def put(x: jax.Array, *axes) -> jax.Array:
        free = (P.UNCONSTRAINED,) * (x.ndim - len(axes))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes, *free)))

    # ``[A * B, ...]`` as ``[A, B, ...]``, whole on the axis. By hand: jax would sum the gradient whole on every device.
    @jax.custom_vjp
    def gathered(x: jax.Array) -> jax.Array:
        return put(x.reshape(parts, -1, *x.shape[1:]), None, batch)

    def scattered(_, slope: jax.Array) -> tuple[jax.Array]:
        return (put(put(slope, CONTEXT, batch).reshape(-1, *slope.shape[2:]), (CONTEXT, *batch)),)

    gathered.defvjp(lambda x: (gathered(x), None), scattered)

    def attend_rows(query, lanes, view, *, window: int = 1, block: int = 0, scoring: Scoring = PLAIN) -> jax.Array:
        sizes = RowSizes.of(view)
        row = KeyValue(*(join_row(gathered(x), sizes, axis) for x, axis in zip(lanes, (5, 4), strict=True)))

        def by_part(x):
            return put(x.reshape(parts, -1, *x.shape[1:]), CONTEXT, batch)

        def attend(query: jax.Array, queries: RowPart) -> jax.Array:
            options = dict(window=window, block=block, scoring=scoring, queries=queries)
            return row_attention(query, row, view, reach=lambda length, end: reach(length, parts, end), **options)

        return jax.vmap(attend)(by_part(query), row_part(view, parts)).reshape(query.shape)

    return attend_rows


def state_transfer(mesh: Mesh, *, each_replica: bool = False) -> StateTransfer:
    """Tokens read their states from whichever device of the axis holds them, a chunk of tokens at a time.

    A device looks up what it has of all devices' tokens, 0 for the others; the sums go back to the tokens' devices.
    ``each_replica``: as for `batch_axes`.
    """
    parts = mesh.shape[CONTEXT]
    if parts == 1:
        return LOCAL_STATES
    split = P(row_axes(mesh, each_replica=each_replica))
    on_each_device = partial(jax.shard_map, mesh=mesh, out_specs=split, check_vma=False)

    def local_index(source: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        """Of all parts' tokens, ``[A, F, n]``: places among this device's ``count`` states; whether they are here."""
        index = jax.lax.all_gather(source, CONTEXT) - jax.lax.axis_index(CONTEXT) * count
        return index, (index >= 0) & (index < count)

    @partial(on_each_device, in_specs=(split, split))
    def take(hidden, source):
        index, here = local_index(source, hidden.shape[1])
        states = LOCAL_STATES.take(hidden, jnp.moveaxis(jnp.where(here, index, 0), 0, 1).reshape(len(hidden), -1))
        states = jnp.moveaxis(states.reshape(len(hidden), parts, *source.shape[1:], -1), 1, 0)
        return jax.lax.psum_scatter(jnp.where(here[..., None], states, 0), CONTEXT)

    @partial(on_each_device, in_specs=(split, split, split))
    def add(total, source, new):
        index, here = local_index(source, total.shape[1])
        new = jnp.where(here[..., None], jax.lax.all_gather(new, CONTEXT), 0)

        def in_turn(x):
            return jnp.moveaxis(x, 0, 1).reshape(len(total), -1, *x.shape[3:])

        return LOCAL_STATES.add(total, in_turn(jnp.where(here, index, 0)), in_turn(new))

    return StateTransfer(parts, take, add)
