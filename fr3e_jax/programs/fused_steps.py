"""The fused attention of decode steps on a mesh: each device with its slots and heads."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy import triton_decode_kernel
from fr3e_jax.policy.attention import PLAIN, KeyValue, Scoring
from fr3e_jax.policy.decode_attention import OwnCache, OwnPart, merged_with, step_attention
from fr3e_jax.policy.decode_kernel import Seen, trunk_and_ring_attention
from fr3e_jax.programs.context_axis import batch_axes


def fuses_steps(attention: str, kv_heads: int, tensor: int) -> bool:
    """Return whether decode steps read trunks and rings in a fused kernel.

    They do not where each device would need parts of two groups.
    """
    return attention == "pallas" and kv_heads % tensor == 0


def fused_steps(mesh: Mesh, largest_block: int = 0, kernels: str = "") -> Callable:
    """`fr3e_jax.policy.decode_attention.step_attention` with trunks and rings in a fused kernel.

    The few recent columns, which the step writes, stay with XLA. So does all where no ring is older than they are, and
    where ``tensor`` does not divide the key/value heads. Devices that are neither TPUs nor GPUs run the operations of
    the kernel one by one, for tests.

    Args:
      largest_block: positions of a block, at most; 0: as many as fit.
      kernels: ``tpu`` or ``gpu``; empty: those of the devices, or else ``tpu``.
    """
    by_slot, by_head = P(batch_axes(mesh)), P(batch_axes(mesh), "tensor")
    of_query, split = P(batch_axes(mesh), None, "tensor"), mesh.shape["tensor"]
    platform = mesh.devices.flat[0].platform
    on_gpu = (kernels or platform) == "gpu"
    attend_caches = triton_decode_kernel.trunk_and_ring_attention if on_gpu else trunk_and_ring_attention

    def attend(
        query: jax.Array, cache: OwnCache, trunk: KeyValue, fork: jax.Array, scoring: Scoring = PLAIN
    ) -> jax.Array:
        if not cache.ring or not fuses_steps("pallas", query.shape[2], split):
            return step_attention(query, cache, trunk, fork, scoring)

        def lanes(x):
            return x.reshape(fork.shape)

        start = cache.trunk_start[0]
        active = lanes(cache.writes)
        seen = Seen(
            jnp.zeros_like(fork) if start is None else start,
            jnp.where(active, fork, 0),
            *map(lanes, cache.ring_span[0]),
        )

        def over_caches(query, trunk, ring, seen):
            sizes = dict(largest_block=largest_block) if largest_block else {}
            interpret = platform not in ("tpu", "gpu")
            return attend_caches(query, trunk, ring, seen, softcap=scoring.softcap, interpret=interpret, **sizes)

        if mesh.size > 1:
            # Values of the kernel's results cannot be tracked across devices (check_vma); nothing is replicated here.
            over_caches = jax.shard_map(
                over_caches,
                mesh=mesh,
                in_specs=(of_query, by_head, by_head, by_slot),
                out_specs=(of_query, of_query),
                check_vma=False,
            )
        mixed, lse = over_caches(scoring.scaled(query), trunk, cache.ring[0], seen)
        return merged_with(mixed, lse, query, OwnPart(cache.recent[0], cache.recent_seen[0]), scoring)

    return attend
