"""The weights that rollouts read: the trained ones, or a copy in another layout or type, or on other devices.

Training splits parameters over all devices (``fsdp``). A decode step that gathered them again for every token would do
little else. So rollouts may have a mesh of their own (`fr3e_jax.programs.mesh.rollout_mesh`) and matrices of another
type. One compiled program makes that copy after the weights have changed. To devices that only sample
(``mesh.sampler_devices``) the copy then moves as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.int8 import quantised
from fr3e_jax.policy.lora import joined, merged
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.frozen_base import FrozenBase
from fr3e_jax.programs.program import Program


def read_type(setting: str, stored: str, compute: str, platform: str) -> str:
    """The type of the matrices that rollouts read, by the setting ``rollout.param_dtype``; empty: as stored.

    An empty setting means the compute type on GPU. There every decode step would convert wider weights anew, to the
    same numbers. The copy takes half of the gradient's memory, which is free while rollouts are sampled.
    """
    wider = (stored, compute) == ("float32", "bfloat16")
    return compute if not setting and wider and platform.startswith("gpu") else setting


def _converted(abstract: Params, dtype: str) -> Params:
    """``abstract`` with matrices of ``dtype``, but for those in int8.

    Vectors keep their type: norms multiply in float32, and all are small.
    """

    def kind(leaf):
        return jnp.dtype(dtype) if dtype and leaf.ndim > 1 and leaf.dtype != jnp.int8 else leaf.dtype

    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, kind(leaf)), abstract)


def _cuts(mesh: Mesh) -> list[int]:
    """Devices within one step of each axis: 1, tensor, context x tensor, fsdp x context x tensor, all."""
    return [math.prod(mesh.devices.shape[axis:]) for axis in range(mesh.devices.ndim, -1, -1)]


class _Refinement:
    """A mesh whose axes refine those of both meshes: runs of its axes make up theirs, as 2x4 does 1x8x1 and 2x1x4."""

    def __init__(self, source: Mesh, target: Mesh):
        cuts = sorted({*_cuts(source), *_cuts(target)})
        sizes = [high // low for low, high in pairwise(cuts)][::-1] or [1]
        self.cuts, self.names = cuts[::-1], tuple(f"part{i}" for i in range(len(sizes)))
        self.mesh = Mesh(source.devices.reshape(sizes), self.names, axis_types=(AxisType.Auto,) * len(sizes))

    @staticmethod
    def exists(source: Mesh, target: Mesh) -> bool:
        return all(high % low == 0 for low, high in pairwise(sorted({*_cuts(source), *_cuts(target)})))

    def parts(self, sharding: NamedSharding, ndim: int) -> list[tuple[str, ...]]:
        """The axes of this mesh that each dimension is split over."""
        cuts = _cuts(sharding.mesh)[::-1]
        of_axis = {
            name: tuple(self.names[self.cuts.index(cuts[i]) : self.cuts.index(cuts[i + 1])])
            for i, name in enumerate(sharding.mesh.axis_names)
        }

        def of_entry(entry):
            return entry if isinstance(entry, tuple) else () if entry is None else (entry,)

        entries = map(of_entry, (*sharding.spec, *(None,) * ndim)[:ndim])
        return [sum((of_axis[axis] for axis in entry), ()) for entry in entries]

    def half_way(self, source: NamedSharding, target: NamedSharding, ndim: int) -> NamedSharding:
        """The layout between: split as in ``target``, and over the other axes that ``source`` splits.

        Devices exchange parts to get there from ``source``, and gather to get from there to ``target``. In one step XLA
        would first gather the whole array on every device.
        """
        before, after = self.parts(source, ndim), self.parts(target, ndim)
        gathered = {axis for dimension in after for axis in dimension}
        split = [
            new + tuple(axis for axis in old if axis not in gathered) for old, new in zip(before, after, strict=True)
        ]
        return NamedSharding(self.mesh, P(*split))


def _half_way(abstract: Params, source: Params, target: Params) -> Params:
    """The layouts between; ``source`` itself if the two meshes have no common refinement (sizes like 2 and 3)."""
    meshes = jax.tree.leaves(source)[0].mesh, jax.tree.leaves(target)[0].mesh
    if not _Refinement.exists(*meshes):
        return source
    refinement = _Refinement(*meshes)
    return jax.tree.map(lambda leaf, s, t: refinement.half_way(s, t, leaf.ndim), abstract, source, target)


def _reshard(abstract: Params, source: Params, between: Params, join: Callable, params: Params) -> Params:
    """Move one array after another: all at once, the copies under way would take as much memory as the result.

    Arrays are converted before they move: a narrower type is less to send. ``join``: makes one tree of ``params``.
    """
    params = join(params)
    leaves, done = jax.tree.leaves(params), []
    for leaf, *plan in zip(leaves, *map(jax.tree.leaves, (abstract, source, between)), strict=True):
        like, *layouts = plan
        if done:
            leaf, done[-1] = jax.lax.optimization_barrier((leaf, done[-1]))
        leaf = leaf.astype(like.dtype)
        for layout in layouts:
            leaf = jax.lax.with_sharding_constraint(leaf, layout)
        done.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(params), done)


def _in_int8(abstract: Params, join: Callable, params: Params) -> Params:
    """The joined ``params``, with the kernels in int8 that ``abstract`` has so."""
    return quantised(abstract, join(params))


class RolloutWeights:
    """The weights for rollouts, in the layout ``target`` with matrices of type ``dtype`` (empty: as trained).

    With kernels in int8 in ``abstract`` the copy has these, and their scales, made anew from each set of weights.

    If neither differs from training, no copy exists and nothing is compiled. A copy lives from the first call of `of`
    with new weights until `release`, so that it takes no memory while the next weights are computed.

    Attributes:
      copies: a copy is made.
      reshard: the program that makes it.
    """

    def __init__(
        self,
        abstract: Params,
        source: Params,
        target: Params,
        dtype: str = "",
        *,
        base: FrozenBase | None = None,
        merges: bool = False,
        elsewhere: Params | None = None,
    ):
        """With ``base`` the weights are adapters on it; ``merges``: into a copy of its kernels, else beside them.

        ``elsewhere``: the copy's layout on devices that only sample, to which it moves from ``target``.
        """
        self.abstract, self.shardings, self._base = _converted(abstract, dtype), elsewhere or target, base
        arrays = zip(*map(jax.tree.leaves, (abstract, self.abstract, source, target)), strict=True)
        differ = any(old != new or not s.is_equivalent_to(t, old.ndim) for old, new, s, t in arrays)
        quantises = any(leaf.dtype == jnp.int8 for leaf in jax.tree.leaves(abstract))
        self.copies = merges or differ or quantises or elsewhere is not None
        self._moves = elsewhere is not None
        join = partial(merged, base.scale) if base is not None and merges else joined
        if quantises:
            join = partial(_in_int8, self.abstract, join)
        between = _half_way(abstract, source, target)
        self.reshard = Program(partial(_reshard, self.abstract, source, between, join), out_shardings=target)
        self._made_from: jax.Array | None = None
        self._copy: Params | None = None

    def of(self, params: Params) -> Params:
        """The finished copy of ``params``, made now unless the last copy was of the same arrays."""
        trained = params if self._base is None else self._base.below(params)
        if not self.copies:
            return joined(trained)
        first = jax.tree.leaves(params)[0]
        if self._made_from is not first:
            self.release()
            self._copy, self._made_from = self._moved(jax.block_until_ready(self.reshard(trained))), first
        return self._copy

    def _moved(self, copy: Params) -> Params:
        return jax.block_until_ready(jax.device_put(copy, self.shardings)) if self._moves else copy

    def release(self) -> None:
        """Drop the copy; call before the weights are updated."""
        self._copy = self._made_from = None
