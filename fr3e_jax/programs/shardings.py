"""Shardings: how parameters, caches, batches and optimizer states lie on the mesh, from one table of logical axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.network import MeshLayout, call_layer
from fr3e_jax.programs.context_axis import CONTEXT, EXPERT, batch_axes, row_axes, split_row_attention, state_transfer
from fr3e_jax.programs.expert_axis import split_experts
from fr3e_jax.programs.fused_rows import fused_rows
from fr3e_jax.programs.fused_steps import fused_steps
from fr3e_jax.programs.mesh import MeshMismatch


@dataclass(frozen=True)
class AxisRule:
    """The mesh axes of a logical axis, and the arrays that may stay whole where they do not divide it.

    ``whole_up_to``: elements of the largest such array. A larger one is refused, so that nothing large is copied to
    every device in silence.
    """

    mesh_axes: tuple[str, ...]
    whole_up_to: float = 0

    def split_over(self, mesh: Mesh) -> tuple[str, ...]:
        """Those of its axes that have several devices."""
        return tuple(axis for axis in self.mesh_axes if mesh.shape.get(axis, 1) > 1)


_SMALL = 2**18  # elements: a megabyte in float32
RULES: dict[str, AxisRule] = {
    "vocab": AxisRule(("tensor",), _SMALL),
    "embed": AxisRule(("fsdp", EXPERT, CONTEXT), _SMALL),
    "heads": AxisRule(("tensor",)),
    "mlp": AxisRule(("tensor",)),
    "experts": AxisRule((EXPERT, "tensor")),  # whole ones: an accelerator pads parts of a few columns
    "expert_embed": AxisRule(("fsdp", CONTEXT), _SMALL),
    "width": AxisRule(("tensor",)),  # of hidden states that are kept
    # Grouped queries: with more shards than key/value heads, each shard of query heads keeps all key/value heads.
    "kv_heads": AxisRule(("tensor",), math.inf),
}


def head_counts(architecture: Architecture) -> dict[str, int]:
    """Number of heads on each logical axis that is divided in units of a head."""
    return {"heads": architecture.num_heads, "kv_heads": architecture.num_kv_heads}


def spec(
    mesh: Mesh,
    axes: tuple[str | None, ...],
    shape: tuple[int, ...],
    *,
    units: Mapping[str, int],
    name: str,
    prefix: str = "mesh.",
) -> P:
    """Partition of one array by the rules table; mesh axes of one device do not appear in it.

    Args:
      units: `head_counts` of the network; other axes are divided in single elements.
      name, prefix: of the array, and of the mesh's settings (``mesh.`` or ``mesh.rollout_``), for the errors.

    Raises:
      MeshMismatch: two dimensions go to one mesh axis, or a dimension that may not stay whole is not divisible.
    """
    chosen: list[str | tuple[str, ...] | None] = []
    for dimension, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        rule = None if axis is None else RULES[axis]
        split = () if rule is None else rule.split_over(mesh)
        if not split:
            chosen.append(None)
            continue
        count, entry = units.get(axis, size), split[0] if len(split) == 1 else split
        if count % math.prod(mesh.shape[mesh_axis] for mesh_axis in split) == 0:
            if entry in chosen:
                raise MeshMismatch(_collision(name, axes, chosen.index(entry), dimension))
            chosen.append(entry)
        elif math.prod(shape) <= rule.whole_up_to:
            chosen.append(None)
        else:
            raise MeshMismatch(_indivisible(name, shape, dimension, count, mesh, split, axis, prefix))
    return P(*chosen)


def _collision(name: str, axes: tuple[str | None, ...], first: int, second: int) -> str:
    return (
        f"{name}: dimensions {first} ({axes[first]}) and {second} ({axes[second]}) both go to mesh axis "
        f"{RULES[axes[second]].mesh_axes[0]}; expected one dimension for each mesh axis: give one of them another "
        "logical axis where the parameter is declared, or another mesh axis in fr3e_jax.programs.shardings.RULES"
    )


def _indivisible(
    name: str, shape, dimension: int, count: int, mesh: Mesh, split: tuple[str, ...], axis: str, prefix: str
) -> str:
    first, rest = split[0], math.prod(mesh.shape[mesh_axis] for mesh_axis in split[1:])
    fitting = [n for n in range(1, mesh.shape[first] + 1) if count % (n * rest) == 0]
    nearest = f"{prefix}{first}={max(fitting)}" if fitting else f"{prefix}{split[-1]}=1"
    other = "replica" if first == "fsdp" else "fsdp"
    sizes = " x ".join(f"{prefix}{mesh_axis}={mesh.shape[mesh_axis]}" for mesh_axis in split)
    return (
        f"{sizes} does not divide dimension {dimension} ({axis}, {count}) of {name} "
        f"{list(shape)}, which may not be whole on every device ({math.prod(shape):,} elements); "
        f"nearest: {nearest}, and {prefix}{other}=-1 to take the devices that remain"
    )


def param_shardings(mesh: Mesh, abstract: Any, axes: Any, architecture: Architecture, *, prefix: str = "mesh.") -> Any:
    """Shardings of a parameter pytree from its logical axes (`fr3e_jax.policy.network.build_network`).

    ``prefix``: of the mesh's settings, for the errors.

    Raises:
      MeshMismatch: with the parameter, the dimension and the mesh axis that do not fit (`spec`).
    """
    units = head_counts(architecture)

    def choose(path, leaf, names):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return NamedSharding(mesh, spec(mesh, names, leaf.shape, units=units, name=name, prefix=prefix))

    return jax.tree_util.tree_map_with_path(choose, abstract, axes)


def cache_sharding(mesh: Mesh, architecture: Architecture) -> NamedSharding:
    """Sharding of keys and values ``[B or L, K, ...]``: slots over the batch axes, heads as in the table."""
    units, shape = head_counts(architecture), (architecture.num_kv_heads,)
    return NamedSharding(
        mesh, P(batch_axes(mesh), *spec(mesh, ("kv_heads",), shape, units=units, name="the key/value cache"))
    )


def kept_hidden_sharding(mesh: Mesh, architecture: Architecture) -> NamedSharding:
    """Sharding of kept hidden states ``[B or L, positions, E]``: slots over the batch axes, width as in the table."""
    width = spec(mesh, ("width",), (architecture.hidden_size,), units={}, name="the kept hidden states")
    return NamedSharding(mesh, P(batch_axes(mesh), None, *width))


def abstract_arrays(abstract: Any, shardings: Any) -> Any:
    """``abstract`` with shardings, to restore a checkpoint into."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract, shardings
    )


def like_params(mesh: Mesh, abstract_state: Any, abstract_params: Any, shardings: Any) -> Any:
    """Shardings of an optimizer state: a leaf that mirrors a parameter is sharded like it, a small one is replicated.

    Raises:
      MeshMismatch: a large leaf mirrors no parameter.
    """
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params)
    by_path = {(path, leaf.shape): s for (path, leaf), s in zip(leaves, jax.tree.leaves(shardings), strict=True)}

    def choose(path, leaf):
        for start in range(len(path)):
            if (path[start:], leaf.shape) in by_path:
                return by_path[path[start:], leaf.shape]
        if leaf.size > _SMALL:
            raise MeshMismatch(
                f"optimizer state {jax.tree_util.keystr(path)} {list(leaf.shape)} mirrors no parameter, and "
                f"{leaf.size:,} elements are too many for every device to keep whole; give it a sharding in like_params"
            )
        return NamedSharding(mesh, P())

    return jax.tree_util.tree_map_with_path(choose, abstract_state)


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """First axis over ``(replica, fsdp)``, the others whole."""
    return NamedSharding(mesh, P(batch_axes(mesh)))


# jax traces and lowers this once for all layers of a program; XLA writes it out for each. At a second start the
# compilation cache saves the work of XLA, but neither tracing nor lowering.
_layer = jax.jit(call_layer, static_argnames=("method", "graphdef", "window", "block", "layout"))


def mesh_layout(mesh: Mesh, attention: str = "xla", *, each_replica: bool = False) -> MeshLayout:
    """The layout of a forward pass on the mesh, under which XLA gathers parameters where they are used, never a batch.

    ``attention``: ``xla`` or ``pallas``. ``each_replica``: rows are those of one replica, and the pass is mapped over
    the replicas (`fr3e_jax.programs.replicas`).

    Hidden states are split by their first axis, that of rows or their parts; else XLA might split them by width, as it
    does the parameters. In training, hidden states between layers are also split by position over ``tensor``, where it
    divides a row, and gathered for the products (Megatron's sequence parallelism, Korthikanti et al. 2022, section
    4.2.2). The backward pass then keeps that much less, and no more is sent than sums over ``tensor`` send.

    Of an embedding that is split both ways, every device gathers its rows in full width, as it does with kernels, and
    looks up the tokens that it finds among them. Else every device would look up the tokens of the whole batch. The
    head is gathered once for all chunks of logits.
    """
    split = mesh.shape[CONTEXT] > 1
    in_products = split_row_attention(mesh, each_replica=each_replica) if split else MeshLayout.attend_rows
    attend, step = in_products, MeshLayout.attend_step
    if attention == "pallas":
        attend, step = fused_rows(mesh, each_replica=each_replica), fused_steps(mesh)
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if mesh.size == 1:
        return MeshLayout(layer=_layer, attend_rows=attend, attend_step=step, lay_out_head=on_cpu)
    tensor, rows = mesh.shape["tensor"], row_axes(mesh, each_replica=each_replica)

    def put(x, *axes):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    def between(x):  # [B, N, T, E]
        # First whole: else XLA would split rows and positions of a flattened product together, and gather batches.
        by_row = put(x, rows)
        return put(by_row, rows, None, "tensor") if tensor > 1 and x.shape[2] % tensor == 0 else by_row

    def gathered(x, axis):  # over fsdp and context; split by the vocabulary as in the table, where that divides
        split = "tensor" if tensor > 1 and x.shape[axis] % tensor == 0 else None
        return put(x, *(split if i == axis else None for i in range(x.ndim)))

    both = tensor > 1 and bool(RULES["embed"].split_over(mesh))
    return MeshLayout(
        hidden=lambda x: put(x, rows),
        between=between,
        embedding=(lambda x: gathered(x, 0)) if both else MeshLayout.embedding,
        head=gathered,
        by_shard=lambda x: put(x, rows, *(P.UNCONSTRAINED,) * (x.ndim - 1)),
        layer=_layer,
        attend_rows=attend,
        attend_step=step,
        experts=split_experts(mesh, each_replica=each_replica),
        states=state_transfer(mesh, each_replica=each_replica),
        lay_out_head=on_cpu,
    )
