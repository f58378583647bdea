"""The meshes of a run without its devices, and their refusals: an estimate must not accept what the run refuses."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import lru_cache

from jax.sharding import AbstractMesh

from fr3e_jax.configuration.schema import MeshConfig
from fr3e_jax.planning.topology import Topology
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.mesh import (
    EXPERT_MESH_AXES,
    MESH_AXES,
    check_slices,
    rollout_shape,
    training_devices,
    training_shape,
)
from fr3e_jax.programs.shardings import cache_sharding, kept_hidden_sharding, param_shardings


@dataclass(frozen=True)
class MeshSizes:
    """Devices on each axis of a mesh."""

    replica: int
    fsdp: int
    context: int
    tensor: int
    expert: int = 1

    @property
    def batch_shards(self) -> int:
        return self.replica * self.fsdp * self.expert

    @property
    def gathered_over(self) -> int:
        """Devices from which each weight is gathered."""
        return self.fsdp * self.context * self.expert

    @property
    def abstract_mesh(self) -> AbstractMesh:
        replica, fsdp, context, tensor, expert = astuple(self)
        if expert > 1:
            return AbstractMesh((replica, fsdp, expert, context, tensor), EXPERT_MESH_AXES)
        return AbstractMesh((replica, fsdp, context, tensor), MESH_AXES)


def training_sizes(mesh: MeshConfig, devices: int) -> MeshSizes:
    """The sizes of the training mesh.

    Raises:
      fr3e_jax.programs.mesh.MeshMismatch: the sizes do not multiply to ``devices``.
    """
    sizes = dict(replica=mesh.replica, fsdp=mesh.fsdp, context=mesh.context, tensor=mesh.tensor)
    count = training_devices(devices, mesh.sampler_devices)
    replica, fsdp, *expert, context, tensor = training_shape(count, expert=mesh.expert, **sizes)
    return MeshSizes(replica, fsdp, context, tensor, *expert)


def rollout_sizes(mesh: MeshConfig, devices: int) -> MeshSizes:
    """The sizes of the mesh on which rollouts are decoded; raises as `training_sizes`."""
    count, tensor = mesh.sampler_devices or devices, mesh.rollout_tensor
    if mesh.sampler_devices:
        tensor = max(tensor, 1)
    if tensor < 1:
        training = training_sizes(mesh, devices)
        return replace(training, fsdp=training.fsdp * training.context, context=1)
    replica, fsdp, tensor = rollout_shape(count, 1, fsdp=mesh.rollout_fsdp, tensor=tensor)
    return MeshSizes(replica, fsdp, 1, tensor)


def check_meshes(mesh: MeshConfig, architecture: Architecture, topology: Topology) -> None:
    """Refuse meshes that a run on this topology would refuse.

    Raises:
      fr3e_jax.programs.mesh.MeshMismatch: an axis does not divide a dimension, or the slices do not divide ``replica``.
    """
    training_devices(topology.devices, mesh.sampler_devices, processes=topology.hosts)
    training, rollouts = training_sizes(mesh, topology.devices), rollout_sizes(mesh, topology.devices)
    if topology.chip.platform == "tpu":
        check_slices(training.replica, topology.slices)
        if mesh.rollout_tensor > 0 and not mesh.sampler_devices:
            rollout_shape(topology.devices, topology.slices, fsdp=mesh.rollout_fsdp, tensor=mesh.rollout_tensor)
    _check(architecture, training, "mesh.")
    _check(architecture, rollouts, "mesh.rollout_" if mesh.rollout_tensor > 0 or mesh.sampler_devices else "mesh.")


@lru_cache(maxsize=1024)
def _check(architecture: Architecture, sizes: MeshSizes, prefix: str) -> None:
    mesh = sizes.abstract_mesh
    param_shardings(mesh, *_network(architecture), architecture, prefix=prefix)
    cache_sharding(mesh, architecture)
    kept_hidden_sharding(mesh, architecture)


@lru_cache(maxsize=8)
def _network(architecture: Architecture):
    return build_network(architecture)[1:]
