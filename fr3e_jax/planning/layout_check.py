"""The refusals of a run's mesh without its devices: an estimate must not accept what the run would refuse."""

from __future__ import annotations

from dataclasses import astuple
from functools import lru_cache

from jax.sharding import AbstractMesh

from fr3e_jax.planning.estimate import Estimator, Sizes
from fr3e_jax.planning.topology import Topology
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.mesh import (
    EXPERT_MESH_AXES,
    MESH_AXES,
    cache_sharding,
    check_slices,
    kept_hidden_sharding,
    param_shardings,
    rollout_shape,
)


def check_layout(estimator: Estimator, topology: Topology) -> None:
    """Refuse meshes that a run on this topology would refuse.

    Raises:
      fr3e_jax.programs.mesh.MeshMismatch: an axis does not divide a dimension, or the slices do not divide ``replica``.
    """
    mesh, train = estimator.config.mesh, estimator.train
    has_rollout_mesh = bool(mesh.rollout_tensor)
    if topology.chip.platform == "tpu":
        check_slices(train.replica, topology.slices)
        if has_rollout_mesh:
            rollout_shape(topology.devices, topology.slices, fsdp=mesh.rollout_fsdp, tensor=mesh.rollout_tensor)
    _check(estimator.a, estimator.train, "mesh.")
    _check(estimator.a, estimator.roll, "mesh.rollout_" if has_rollout_mesh else "mesh.")


@lru_cache(maxsize=1024)
def _check(architecture: Architecture, sizes: Sizes, prefix: str) -> None:
    replica, fsdp, context, tensor, expert = astuple(sizes)
    mesh = AbstractMesh((replica, fsdp, context, tensor), MESH_AXES)
    if expert > 1:
        mesh = AbstractMesh((replica, fsdp, expert, context, tensor), EXPERT_MESH_AXES)
    param_shardings(mesh, *_network(architecture), architecture, prefix=prefix)
    cache_sharding(mesh, architecture)
    kept_hidden_sharding(mesh, architecture)


@lru_cache(maxsize=8)
def _network(architecture: Architecture):
    return build_network(architecture)[1:]
