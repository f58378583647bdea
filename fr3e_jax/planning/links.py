"""The links between chips (ICI) that a collective uses: where the members of its groups lie on the torus.

A chip has two links on each dimension of the torus, one in each direction. A ring around a dimension uses both; a line
that does not close uses one, because its ends have one neighbour. Groups that lie between each other share links. A
group that spans several dimensions uses the links of all of them at once.

Dimension key: A devices of all slices, in the order of the mesh; D dimensions of the torus; G groups, M members each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
from jax.sharding import Mesh

from fr3e_jax.planning.estimate import Sizes
from fr3e_jax.planning.topology import Topology
from fr3e_jax.programs.mesh import EXPERT_MESH_AXES, MESH_AXES, arranged

_CUBE = 4  # chips along each side of the blocks that v4 and v5p join by optical switches, which close the rings
_POD_SIDE = 16  # chips along a side of a v5e or v6e pod, whose rings are closed
_KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite"}  # jax's names


@dataclass(frozen=True)
class MeshLinks:
    """The devices of a mesh on the tori of their slices."""

    places: np.ndarray  # int [A, D], coordinates within the slice
    shape: tuple[int, ...]  # chips along each dimension
    closed: tuple[bool, ...]  # the dimension is a ring
    axes: dict[str, int]  # of the mesh

    def axes_of(self, groups: np.ndarray) -> tuple[str, ...]:
        """The mesh axes along which the members of ``groups [G, M]`` differ."""
        along = np.array(np.unravel_index(groups, tuple(self.axes.values())))  # [axes, G, M]
        return tuple(name for name, at in zip(self.axes, along, strict=True) if (at != at[:, :1]).any())

    def groups(self, names: Iterable[str]) -> np.ndarray:
        """Device numbers ``[G, M]`` of the groups of a collective over these mesh axes."""
        names, axes = set(names), list(self.axes)
        numbers = np.arange(len(self.places)).reshape(tuple(self.axes.values()))
        inside = [i for i, name in enumerate(axes) if name in names]
        others = [i for i in range(len(axes)) if i not in inside]
        members = math.prod(numbers.shape[i] for i in inside)
        return numbers.transpose(others + inside).reshape(-1, members)

    def loads(self, kind: str, groups: np.ndarray) -> tuple[float, ...]:
        """For each dimension, the time that its links are busy for each byte that a device sends.

        The unit is the time in which one link carries a byte. Gathers, scatters and sums divide their bytes over all
        links that the group has, so they keep each of its dimensions busy for 1 / links.

        Args:
          kind: of the collective.
          groups: device numbers ``[G, M]``; of a permutation, source and target.
        """
        places = self.places[groups]  # [G, M, D]
        if kind == "collective-permute":
            return self._permuted(places)
        links = np.array([self._links(places[..., d], d) for d in range(len(self.shape))])
        if kind.endswith("all-to-all"):
            return tuple(self._exchanged(places[..., d], links[d]) for d in range(len(self.shape)))
        return tuple(np.where(links > 0, 1 / links.sum(), 0.0).tolist()) if links.any() else (0.0,) * len(links)

    def _links(self, along: np.ndarray, dimension: int) -> float:
        """Links of one device on a dimension, by the worst group of coordinates ``along [G, M]``; 0: it spans none."""
        found = []
        for at in map(np.unique, along):
            if len(at) > 1:
                stride = np.diff(at).max()  # so many groups share each link
                ring = self.closed[dimension] and self.shape[dimension] - at[-1] + at[0] <= stride
                found.append((2 if ring else 1) / stride)
        return float(min(found, default=0.0))

    def _exchanged(self, along: np.ndarray, links: float) -> float:
        """The load of an exchange: half of the members of a line send half of their bytes over its middle link."""
        members = max(len(np.unique(at)) for at in along)
        return float(members / 4 * along.shape[1] / (along.shape[1] - 1) / links) if links else 0.0

    def _permuted(self, pairs: np.ndarray) -> tuple[float, ...]:
        """The busiest link of each dimension, where all go the shorter way, along one dimension after another."""
        found = []
        for d, size in enumerate(self.shape):
            passed: Counter = Counter()
            for source, target in pairs.tolist():
                line, hops = (*target[:d], *source[d + 1 :]), target[d] - source[d]
                if self.closed[d]:
                    hops = (hops + size // 2) % size - size // 2
                step = 1 if hops > 0 else -1
                passed.update((line, (source[d] + i * step) % size, step) for i in range(abs(hops)))
            found.append(float(max(passed.values(), default=0)))
        return tuple(found)


def closed_rings(topology: Topology) -> tuple[bool, ...]:
    """The dimensions of a slice that are rings.

    v4 and v5p: slices of whole cubes of 4 x 4 x 4 chips are tori, smaller ones have no ring
    (docs.cloud.google.com/tpu/docs/v5p). v5e and v6e: a side of 16 chips is a ring, as in the whole pod
    (jax-ml.github.io/scaling-book/tpus).
    """
    if topology.chip.dimensions == 3:
        return (all(size % _CUBE == 0 for size in topology.shape),) * 3
    return tuple(size == _POD_SIDE for size in topology.shape)


def links_of_mesh(mesh: Mesh, topology: Topology) -> MeshLinks | None:
    """The links of a mesh of TPU devices; None for GPUs, each of which reaches all others of its host alike."""
    if topology.chip.platform != "tpu":
        return None
    return _placed(list(mesh.devices.flat), dict(mesh.shape), topology)


@lru_cache(maxsize=1024)
def estimated_links(topology: Topology, training: Sizes, own: Sizes) -> MeshLinks | None:
    """The links of a mesh that is not made, laid out as a run lays it out; None for GPUs.

    Args:
      topology: the hardware.
      training: the sizes of the training mesh.
      own: those of the mesh in question, which has the devices of training in the same order.
    """
    if topology.chip.platform != "tpu":
        return None
    devices = arranged(_devices(topology), tuple(_axes(training).values()))
    return _placed(list(devices.flat), _axes(own), topology)


def _axes(sizes: Sizes) -> dict[str, int]:
    """Devices on each axis of a mesh, which has an axis of experts only where it splits them."""
    names = EXPERT_MESH_AXES if sizes.expert > 1 else MESH_AXES
    return {name: getattr(sizes, name) for name in names}


def _placed(devices: Sequence, axes: dict[str, int], topology: Topology) -> MeshLinks:
    dimensions = len(topology.shape)
    places = np.array([device.coords[:dimensions] for device in devices])
    return MeshLinks(places - places.min(axis=0), topology.shape, closed_rings(topology), axes)


def _devices(topology: Topology) -> list[SimpleNamespace]:
    """What the layout of a mesh reads of a TPU's devices, in the order of their numbers: x runs fastest."""
    sizes, found = (*topology.shape, 1)[:3], []
    for number in range(topology.devices):
        where, inside = divmod(number, topology.chips_per_slice)
        found.append(
            SimpleNamespace(
                id=number,
                platform="tpu",
                device_kind=_KINDS[topology.chip.name],
                coords=tuple(int(at) for at in np.unravel_index(inside, sizes, order="F")),
                core_on_chip=0,
                slice_index=where,
                process_index=number // 4,
            )
        )
    return found
