"""Experts on several devices: each device computes what its experts, or its columns of them, add to the tokens.

Tokens are sorted by expert on each device; left to itself, XLA would sort the tokens of all devices everywhere. Over
the mesh axis ``expert`` each device has a part of the experts. It gathers the tokens of its group, and the results are
summed and scattered back. Every token may choose any expert, so nothing is dropped. With C experts a token (8 in
Qwen3), an axis of up to C devices would send hardly less by sending each token to its experts alone, and would need
buffers for the worst case.

Dimension key: U tokens, C experts of a token, X experts, E width, F columns of an expert's gate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.experts import Choice, Kernels, apply_experts
from fr3e_jax.programs.context_axis import EXPERT, row_axes


def split_experts(mesh: Mesh) -> Callable:
    """`fr3e_jax.policy.experts.apply_experts` of tokens ``[U, E]`` that lie by rows on the mesh.

    Each device has the experts of its place on ``expert`` (all, without this axis) and the columns of its place on
    ``tensor``. Over the other axes their weights are gathered.
    """
    if mesh.size == 1:
        return apply_experts
    rows, owner = row_axes(mesh), EXPERT if EXPERT in mesh.shape else None
    wide, narrow = P(owner, None, "tensor"), P(owner, "tensor", None)

    def apply(x: jax.Array, choice: Choice, kernels: Kernels, *, activation: str) -> jax.Array:
        # The parts of the sum over ``tensor`` are added outside: a sum inside would be computed again for gradients.
        @partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(P(rows), Choice(P(rows), P(rows)), Kernels(wide, wide, narrow)),
            out_specs=P("tensor", rows),
            check_vma=False,
        )
        def on_each_device(x, choice, kernels):
            if owner is None:
                return apply_experts(x, choice, kernels, activation=activation)[None]
            x, choice = jax.tree.map(lambda a: jax.lax.all_gather(a, owner, tiled=True), (x, choice))
            first = jax.lax.axis_index(owner) * kernels.gate.shape[0]
            added = apply_experts(x, choice, kernels, activation=activation, first=first)
            return jax.lax.psum_scatter(added.astype(x.dtype), owner, tiled=True)[None]

        return on_each_device(x, choice, kernels).sum(axis=0)

    return apply
