"""Experts on several devices: each device computes what its experts add to the tokens.

Tokens are sorted by expert on each device; left to itself, XLA would sort the tokens of all devices everywhere. Over
the mesh axes ``expert`` and ``tensor`` each device has some of the experts. Over ``tensor`` all devices have the same
tokens already. Over ``expert`` a device gathers the tokens of its group, and the results are summed and scattered back.
Every token may choose any expert, so nothing is dropped. With C experts a token (8 in Qwen3), an axis of up to C
devices would send hardly less by sending each token to its experts alone, and would need buffers for the worst case.

Dimension key: U tokens, E width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.custom_batching
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.experts import ExpertChoice, Kernels, apply_experts
from fr3e_jax.programs.context_axis import EXPERT, row_axes


def split_experts(mesh: Mesh, *, each_replica: bool = False) -> Callable:
    """`fr3e_jax.policy.experts.apply_experts` of tokens ``[U, E]`` that lie by rows on the mesh.

    Each device has the experts of its place on ``expert``, where the mesh has that axis, and ``tensor``. Over the other
    axes their weights are gathered. ``each_replica``: tokens are those of one replica.
    """
    if mesh.size == 1:
        return apply_experts
    rows, gathers = row_axes(mesh, each_replica=each_replica), EXPERT in mesh.shape
    owners = (EXPERT, "tensor") if gathers else ("tensor",)
    experts = partial(apply_experts, grouped_product=_product_of_replica) if each_replica else apply_experts

    def apply(x: jax.Array, choice: ExpertChoice, kernels: Kernels, *, activation: str) -> jax.Array:
        # The parts of the sum over ``tensor`` are added outside: a sum inside would be computed again for gradients.
        @partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(P(rows), ExpertChoice(P(rows), P(rows)), Kernels(*(P(owners),) * 3)),
            out_specs=P("tensor", rows),
            check_vma=False,
        )
        def on_each_device(x, choice, kernels):
            first = None
            if any(mesh.shape[axis] > 1 for axis in owners):
                first = jax.lax.axis_index(owners) * kernels.gate.shape[0]
            if gathers:
                x, choice = jax.tree.map(lambda a: jax.lax.all_gather(a, EXPERT, tiled=True), (x, choice))
            added = experts(x, choice, kernels, activation=activation, first=first)
            if gathers:
                added = jax.lax.psum_scatter(added.astype(x.dtype), EXPERT, tiled=True)
            return added[None]

        return on_each_device(x, choice, kernels).sum(axis=0)

    return apply


def _of_one(function: Callable) -> Callable:
    """``function``, which jax cannot map, for a map over an axis of one: that of replicas is, on each device."""
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def on_the_only_one(size: int, are_mapped: Sequence[bool], *arrays: jax.Array) -> tuple:
        assert size == 1, "a device belongs to one replica"
        outputs = function(*(x[0] if is_mapped else x for x, is_mapped in zip(arrays, are_mapped, strict=True)))
        return jax.tree.map(lambda x: x[None], outputs), jax.tree.map(lambda x: True, outputs)

    return mapped


def _slopes(rows: jax.Array, kernels: jax.Array, group_sizes: jax.Array, slope: jax.Array) -> tuple:
    return jax.vjp(lambda *inputs: jax.lax.ragged_dot(*inputs, group_sizes), rows, kernels)[1](slope)


@jax.custom_vjp
def _product_of_replica(rows: jax.Array, kernels: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """`jax.lax.ragged_dot` and its gradient, mapped over replicas: jax has no rule for it."""
    return _of_one(jax.lax.ragged_dot)(rows, kernels, group_sizes)


_product_of_replica.defvjp(
    lambda *inputs: (_product_of_replica(*inputs), inputs),
    lambda inputs, slope: (*_of_one(_slopes)(*inputs, slope), None),
)
