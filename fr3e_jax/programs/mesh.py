"""The device mesh: sizes of its axes, and the order of devices on them.

Mesh axes: ``replica`` copies parameters, ``fsdp`` shards parameters and batch, ``context`` shards parameters and the
positions of rows, ``tensor`` shards heads and MLP columns. Batches and decoder slots are split over
``(replica, fsdp)``. A mesh for a mixture of experts may also have ``expert``: it is as a part of ``fsdp``, but there
it is the experts that are split, and not their weights (`fr3e_jax.programs.expert_axis`). ``tensor`` splits them, too.
`fr3e_jax.programs.shardings` says how arrays lie on the mesh.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from fr3e_jax.programs.context_axis import BATCH, CONTEXT, EXPERT, batch_axes

MESH_AXES = (*BATCH, CONTEXT, "tensor")
EXPERT_MESH_AXES = (*BATCH, EXPERT, CONTEXT, "tensor")


class MeshMismatch(ValueError):
    """The configured mesh does not fit the devices, or does not divide the network."""


def make_mesh(
    replica: int = 1, fsdp: int = -1, tensor: int = 1, devices=None, *, context: int = 1, expert: int = 1
) -> Mesh:
    """A mesh over all devices; one size may be -1 and takes the devices that the others leave.

    On TPU the axes follow the torus of the chips, ``tensor`` on the nearest ones, then ``context``; with several slices
    ``replica`` spans them, so that only gradients cross the slow network between slices, once an optimizer step.

    Raises:
      MeshMismatch: the sizes do not multiply to the number of devices, or the slices do not divide ``replica``.
    """
    devices = jax.devices() if devices is None else list(devices)
    shape = training_shape(len(devices), replica=replica, fsdp=fsdp, context=context, tensor=tensor, expert=expert)
    return _mesh(arranged(devices, shape))


def training_shape(count: int, *, expert: int, **sizes: int) -> tuple[int, ...]:
    """Devices on each axis of a training mesh: on `MESH_AXES`, or with ``expert > 1`` on `EXPERT_MESH_AXES`.

    Raises:
      MeshMismatch: see `resolve_sizes`; or rows would be split as well.
    """
    if expert == 1:
        return resolve_sizes(count, **sizes)
    if expert > 1 and sizes[CONTEXT] > 1:
        raise MeshMismatch(
            f"mesh.expert={expert} and mesh.context={sizes[CONTEXT]}: experts are not split where rows are; "
            "set one of them to 1"
        )
    replica, fsdp, expert, tensor = resolve_sizes(
        count, replica=sizes["replica"], fsdp=sizes["fsdp"], expert=expert, tensor=sizes["tensor"]
    )
    return replica, fsdp, expert, 1, tensor


def _mesh(devices: np.ndarray) -> Mesh:
    names = MESH_AXES if devices.ndim == len(MESH_AXES) else EXPERT_MESH_AXES
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def resolve_sizes(count: int, **sizes: int) -> tuple[int, ...]:
    """The sizes with -1 replaced.

    Raises:
      MeshMismatch: a size is below 1, more than one is -1, or they do not multiply to ``count``.
    """
    names = {axis: f"mesh.{axis}" for axis in sizes}
    wrong = [f"{names[axis]}={size}" for axis, size in sizes.items() if size < 1 and size != -1]
    if wrong:
        raise MeshMismatch(f"{wrong[0]} is no size of a mesh axis; set a number of devices, or -1 to infer it")
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        settings = " and ".join(f"{names[axis]}=-1" for axis in open_axes)
        raise MeshMismatch(f"{settings} leave the mesh undetermined; give all of them but one a number of devices")
    given_product = math.prod(size for size in sizes.values() if size != -1)
    shape = tuple(max(count // given_product, 1) if size == -1 else size for size in sizes.values())
    if math.prod(shape) != count:
        named = [(axis, size) for axis, size in zip(sizes, shape, strict=True) if axis != CONTEXT or size > 1]
        product = " x ".join(f"{names[axis]}={size}" for axis, size in named)
        raise MeshMismatch(
            f"{product} is {math.prod(shape)} devices, but there are {count}; "
            f"set one of them to -1 to take all that remain, the others to divisors of {count}"
        )
    return shape


def arranged(devices: list, shape: tuple[int, ...]) -> np.ndarray:
    """Devices in the order of the mesh: neighbours of the interconnect are neighbours on its last axes.

    Raises:
      MeshMismatch: the slices do not divide the first axis.
    """
    if getattr(devices[0], "platform", "") != "tpu":
        return np.asarray(devices).reshape(shape)
    slices = _slices(devices)
    if slices == 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    check_slices(shape[0], slices)
    inside = (shape[0] // slices, *shape[1:])
    across = (slices, *(1,) * len(shape[1:]))
    return mesh_utils.create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)


def _slices(devices) -> int:
    """Number of TPU slices that the devices lie in; 1 where they are no TPUs."""
    return len({getattr(device, "slice_index", None) or 0 for device in devices})


def check_slices(replica: int, slices: int) -> None:
    """Refuse a mesh whose ``replica`` axis does not span the slices: another axis would cross the network between them.

    Raises:
      MeshMismatch: ``replica`` is not a multiple of ``slices``.
    """
    if replica % slices:
        raise MeshMismatch(
            f"mesh.replica={replica} is not a multiple of the {slices} slices that it spans; "
            f"set mesh.replica={slices}, and mesh.fsdp=-1 for the devices of a slice"
        )


def rollout_shape(count: int, slices: int, *, fsdp: int, tensor: int) -> tuple[int, int, int]:
    """Replica, fsdp and tensor of ``count`` devices for rollouts: copies of fsdp x tensor devices, each in one slice.

    Raises:
      MeshMismatch: the copies do not divide the devices of a slice.
    """
    if count // slices % (fsdp * tensor):
        of = f" of each of the {slices} slices" if slices > 1 else ""
        raise MeshMismatch(
            f"mesh.rollout_fsdp={fsdp} x mesh.rollout_tensor={tensor} is {fsdp * tensor} devices, which do not divide "
            f"the {count // slices}{of}; set them so that their product does"
        )
    return count // (fsdp * tensor), fsdp, tensor


def rollout_mesh(training: Mesh, *, fsdp: int = 1, tensor: int = 0) -> Mesh:
    """The mesh that rollouts are decoded on: the same devices in the same order under other sizes.

    ``tensor < 1`` is the training mesh itself, but with ``context`` as a part of ``fsdp``: a decode step has many
    lanes, and each is one position. The weights lie as in training.

    Raises:
      MeshMismatch: see `rollout_shape`.
    """
    if tensor < 1 and EXPERT in training.shape:  # which has no context
        return training
    if tensor < 1:
        size = training.shape
        replica, fsdp, tensor = size["replica"], size["fsdp"] * size[CONTEXT], size["tensor"]
    else:
        slices = _slices(training.devices.flat)
        replica, fsdp, tensor = rollout_shape(training.size, slices, fsdp=fsdp, tensor=tensor)
    shape = (replica, fsdp, 1, tensor)
    return training if shape == training.devices.shape else _mesh(training.devices.reshape(shape))


def sampler_mesh(training: Mesh, devices: list, *, fsdp: int, tensor: int) -> tuple[Mesh, Mesh]:
    """The mesh of devices that only sample, and the layout on the training devices in which its weights leave these.

    Both split the weights alike where the sizes divide the training devices, so that each device sends what another
    reads. Else the weights go by the host.

    Raises:
      MeshMismatch: see `rollout_shape`.
    """
    replica, fsdp, tensor = rollout_shape(len(devices), 1, fsdp=fsdp, tensor=max(tensor, 1))
    mesh = _mesh(arranged(devices, (replica, fsdp, 1, tensor)))
    divides = training.size % (fsdp * tensor) == 0
    return mesh, rollout_mesh(training, fsdp=fsdp, tensor=tensor) if divides else training


def separate_devices(devices: list, sampler: int) -> tuple[list, list]:
    """The devices that train, and the ``sampler`` that only sample (``mesh.sampler_devices``); 0: all do both.

    Those that sample come first: small programs of the host run on the first device, and would wait for an update.

    Raises:
      MeshMismatch: see `training_devices`.
    """
    training_devices(len(devices), sampler, processes=len({device.process_index for device in devices}))
    return devices[sampler:], devices[:sampler]


def training_devices(count: int, sampler: int, processes: int = 1) -> int:
    """The number of devices that train, where ``sampler`` of ``count`` only sample.

    Raises:
      MeshMismatch: none is left to train; or the devices are of several processes.
    """
    if sampler and processes > 1:
        raise MeshMismatch(
            f"mesh.sampler_devices={sampler} is for one process with all devices, but there are {processes} processes; "
            "set mesh.sampler_devices=0 (docs/developers/decisions.md has what several would take)"
        )
    if sampler >= count:
        raise MeshMismatch(
            f"mesh.sampler_devices={sampler} leaves none of the {count} devices to train; "
            f"nearest: mesh.sampler_devices={count - 1}"
        )
    return count - sampler


def batch_shards(mesh: Mesh) -> int:
    """Number of shards that a batch is split into; batch sizes are multiples of it. ``context`` splits no batch."""
    return math.prod(mesh.shape[axis] for axis in batch_axes(mesh))
