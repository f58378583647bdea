"""Replicas: each sums the gradients of its own rows, and the sums of all are added once an optimizer step.

Replicas hold the same parameters and lie in different slices, if there are several. The network between slices is slow,
so a micro-batch sends nothing over it but a few sums for the metrics. Gradients have a leading axis, ``[R, ...]`` for R
replicas, which is split over ``replica``: on a device they are as large as one gradient.

The gradient of a micro-batch is mapped over the replicas (`jax.vmap`), whose axis the compiler splits as it does the
others. `jax.shard_map` over ``replica`` alone would say the same, but XLA's partitioner cannot gather within it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.programs.context_axis import batch_axes

REPLICA = "replica"
KEPT = ("logprobs",)  # among the sums of a micro-batch: a value of each token, ``[B, N, T]``


def by_replica(mesh: Mesh, shardings: Any) -> Any:
    """Shardings of gradients ``[R, ...]``, of parameters split as in ``shardings``."""
    return jax.tree.map(lambda sharding: NamedSharding(mesh, P(REPLICA, *sharding.spec)), shardings)


def zeros_by_replica(mesh: Mesh, params: Any) -> Any:
    """Gradients ``[R, ...]`` of 0."""
    return jax.tree.map(lambda x: jnp.zeros((mesh.shape[REPLICA], *x.shape), x.dtype), params)


def accumulate_apart(accumulate: Callable, params, gradients, batch, *numbers):
    """``accumulate`` with the values `KEPT` apart from the other sums."""
    gradients, sums = accumulate(params, gradients, batch, *numbers)
    by_token = {name: sums.pop(name) for name in KEPT if name in sums}
    return gradients, sums, by_token


def accumulate_by_replica(mesh: Mesh, accumulate: Callable, params, gradients, batch, *numbers):
    """``accumulate`` for each replica with its own rows; within it, the replicas are the named axis `REPLICA`.

    Returns gradients ``[R, ...]``, the sums of all replicas, and the values `KEPT` in the order of the rows.
    """
    split = NamedSharding(mesh, P(REPLICA, batch_axes(mesh, each_replica=True)))

    def by_replica_rows(x: jax.Array) -> jax.Array:  # the first rows are those of the first replica, on its devices
        return jax.lax.with_sharding_constraint(x.reshape(mesh.shape[REPLICA], -1, *x.shape[1:]), split)

    each = jax.vmap(
        lambda gradients, batch: accumulate(params, gradients, batch, *numbers),
        axis_name=REPLICA,
        spmd_axis_name=REPLICA,
    )
    gradients, sums, by_token = each(gradients, jax.tree.map(by_replica_rows, batch))
    return gradients, added(sums), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), by_token)


def longest_of_all(count: jax.Array, axis: str | None) -> jax.Array:
    """The largest ``count`` of all replicas, the length of a loop that they run in step; ``axis`` None: ``count``."""
    return count if axis is None else jax.lax.pmax(count, axis)


def sum_of_all(value: jax.Array, axis: str | None) -> jax.Array:
    """The sum of the replicas' values; ``axis`` None: ``value``."""
    return value if axis is None else jax.lax.psum(value, axis)


def added(values: Any) -> Any:
    """The sum over replicas of arrays ``[R, ...]``."""
    return jax.tree.map(lambda x: x.sum(axis=0), values)
