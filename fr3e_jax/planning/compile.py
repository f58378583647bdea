"""One program compiled for a topology: its memory on each device, the bytes it sends, and its least time."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np
from jax.experimental import topologies

from fr3e_jax.planning.costs import Collective, collectives, count_flops
from fr3e_jax.planning.estimate import Estimate, Estimator
from fr3e_jax.planning.links import MeshLinks, estimated_links, links_of_mesh
from fr3e_jax.planning.targets import Target, device_bytes
from fr3e_jax.planning.topology import Topology, TopologyError
from fr3e_jax.planning.traffic import moved_bytes

GIB = 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}


@dataclass(frozen=True)
class ProgramPlan:
    """Figures of one program. Bytes are those of one device, FLOPs those of all devices."""

    name: str
    shape: str
    fits: bool
    hbm_bytes: int  # of the chip
    argument_bytes: int
    temporary_bytes: int
    output_bytes: int  # without the outputs that replace donated arguments
    peak_bytes: int  # of the program alone; of a refused program, the bytes it asked for
    resident: dict[str, int]  # other arrays of the run that stay on the device while the program runs
    flops: int
    read_bytes: int  # through HBM: of decoding the least that it reads; of a compiled program what it moves
    collectives: list[Collective] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)  # bytes read and written by part; {} where nothing was compiled
    largest: dict[str, int] = field(default_factory=dict)  # the largest arrays, by estimate
    floor_seconds: float = 0.0
    dominated_by: str = ""  # the slowest resource: compute, memory or network
    steps: int = 1
    positions: int = 0  # positions that one call passes through the network, or samples
    compile_seconds: float = 0.0
    refused: bool = False  # the compiler refused it: the program alone does not fit
    estimated: bool = False  # nothing was compiled

    @property
    def total_bytes(self) -> int:
        """Bytes that the device holds while the program runs."""
        return self.peak_bytes + sum(self.resident.values())

    @property
    def share(self) -> float:
        """The share of the chip's memory that is held."""
        return self.total_bytes / self.hbm_bytes


def topology_devices(topology: Topology) -> list:
    """The devices of a topology that is not there, slice after slice, as libtpu describes them to the compiler.

    It needs libtpu and the environment of `fr3e_jax.planning.planner_process`.

    Raises:
      TopologyError: libtpu knows no such slice.
    """
    options = {"num_slices": topology.slices} if topology.slices > 1 else {}
    if topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology.slice_name, **options)
    except Exception as error:  # libtpu raises several kinds
        reason = str(error).splitlines()[0]
        raise TopologyError(
            f"--topology {topology.name}: libtpu has no such slice ({reason}); "
            f"give the shape of one that exists, like {topology.chip.name}:{'x'.join('4' * topology.chip.dimensions)}"
        ) from error
    return sorted(found.devices, key=lambda device: (getattr(device, "slice_index", None) or 0, device.id))


def compile_target(target: Target, topology: Topology) -> ProgramPlan:
    """Compile for the devices of the target's arguments. A program that is too large gives a plan with ``refused``."""
    arguments = device_bytes(target.arguments)
    plan = ProgramPlan(
        name=target.name,
        shape=target.shape,
        fits=False,
        hbm_bytes=int(topology.chip.hbm_gib * GIB),
        argument_bytes=arguments,
        temporary_bytes=0,
        output_bytes=0,
        peak_bytes=arguments,
        resident={name: device_bytes(tree) for name, tree in target.resident.items()},
        flops=count_flops(target.trace().jaxpr.jaxpr, target.trips),
        read_bytes=target.read_bytes or arguments,
        steps=target.steps,
        positions=target.positions,
    )
    started = time.monotonic()
    try:
        compiled = target.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        asked = requested_bytes(str(error), arguments)
        plan = replace(plan, refused=True, peak_bytes=asked, temporary_bytes=asked - arguments)
    else:
        memory = compiled.memory_analysis()
        slice_size = topology.chips_per_slice if topology.slices > 1 else 0
        text = compiled.as_text()
        plan = replace(
            plan,
            argument_bytes=memory.argument_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
            peak_bytes=memory.peak_memory_in_bytes,
            collectives=collectives(
                text, trips=target.trips, chips_per_slice=slice_size, mesh=links_of_mesh(target.mesh, topology)
            ),
            moved=(moved := moved_bytes(text, trips=target.trips)),
            read_bytes=target.read_bytes or max(arguments, sum(moved.values())),
        )
        plan = replace(plan, fits=plan.total_bytes <= plan.hbm_bytes)
    return with_floor(replace(plan, compile_seconds=time.monotonic() - started), topology)


def estimated_plan(name: str, estimator: Estimator, topology: Topology) -> ProgramPlan:
    """The same figures from an estimate, without compiling."""
    estimate = estimator.of(name)
    plan = ProgramPlan(
        name=name,
        shape=estimate.shape,
        fits=False,
        hbm_bytes=int(topology.chip.hbm_gib * GIB),
        argument_bytes=0,
        temporary_bytes=0,
        output_bytes=0,
        peak_bytes=int(estimate.peak_bytes),
        resident={name: int(size) for name, size in estimate.resident.items()},
        flops=int(estimate.flops),
        read_bytes=int(estimate.read_bytes),
        collectives=_estimated_collectives(name, estimator, estimate, topology),
        largest=largest_arrays(estimate),
        steps=estimate.steps,
        positions=estimate.positions,
        estimated=True,
    )
    return with_floor(replace(plan, fits=plan.total_bytes <= plan.hbm_bytes), topology)


_BATCH = ("replica", "fsdp", "expert")
_GATHERED = ("fsdp", "expert", "context")  # axes over which weights are gathered


def _estimated_collectives(name: str, estimator: Estimator, estimate: Estimate, topology: Topology) -> list[Collective]:
    """The estimated collectives. The chips of a slice share the bytes that pass between slices."""
    training, rollouts = estimator.train, estimator.roll
    trains = name in ("score", "accumulate", "apply", "reshard")
    mesh = estimated_links(topology, training, training if trains else rollouts)
    everywhere = (*_GATHERED, "replica", "tensor")
    sent = [("all-gather", estimate.gathered_bytes, False, everywhere if name == "reshard" else _GATHERED)]
    sent.append(("all-reduce", estimate.reduced_bytes, False, _BATCH if name == "promote" else ("tensor",)))
    sent.append(("all-reduce", estimate.summed_bytes, topology.slices > 1, ("replica",)))
    if topology.slices > 1 and topology.chip.platform == "gpu":  # the fsdp axis spans the hosts
        sent.append(("all-gather", estimate.gathered_bytes / topology.chips_per_slice, True, _GATHERED))
    return [_estimated(kind, int(size), across, axes, mesh) for kind, size, across, axes in sent if size]


def _estimated(kind: str, size: int, across: bool, axes: tuple[str, ...], mesh: MeshLinks | None) -> Collective:
    if mesh is None or across:
        return Collective(kind, 0, across, 0, size)
    groups = mesh.groups(axes)
    return Collective(kind, groups.shape[1], across, 0, size, mesh.axes_of(groups), mesh.loads(kind, groups))


def largest_arrays(estimate: Estimate, count: int = 5) -> dict[str, int]:
    """Estimated bytes of the ``count`` largest arrays on a device while the program runs."""
    everything = estimate.arrays | estimate.resident
    return {name: int(everything[name]) for name in sorted(everything, key=everything.get, reverse=True)[:count]}


def with_floor(plan: ProgramPlan, topology: Topology) -> ProgramPlan:
    """The plan with its least time: the longest of computing, reading HBM and sending, each at its published peak."""
    chip = topology.chip
    between = sum(c.sent_bytes for c in plan.collectives if c.across_slices)
    times = {
        "compute": plan.flops / topology.devices / chip.peak_flops,
        "memory": plan.read_bytes / chip.hbm_bandwidth,
        "network": max(link_seconds(plan.collectives, topology), between / chip.network_bandwidth),
    }
    slowest = max(times, key=times.get)
    return replace(plan, floor_seconds=times[slowest], dominated_by=slowest)


def link_seconds(found: Sequence[Collective], topology: Topology) -> float:
    """The least time of the collectives within a slice: that of the dimension of the torus whose links send most.

    Collectives over other dimensions may run at the same time. Without a torus, all links of a chip serve each.
    """
    chip, inside = topology.chip, [c for c in found if not c.across_slices]
    busy = np.zeros(len(topology.shape))
    for collective in inside:
        busy += collective.sent_bytes * np.array(collective.loads or (0.0,) * len(busy))
    elsewhere = sum(c.sent_bytes for c in inside if not c.loads)
    return float(busy.max()) / chip.bandwidth_of_a_link + elsewhere / chip.link_bandwidth


def requested_bytes(message: str, arguments: int) -> int:
    """The bytes that a refused program asked for in all, read from the compiler's message.

    Some messages leave out the arguments; ``arguments`` is their size in bytes.
    """
    if total := re.search(r"Used ([\d.]+)([KMGT]?) of", message):
        return int(float(total[1]) * _UNITS[total[2]])
    over = re.search(r"\(([\d.]+)([KMGT]?)\) exceeds", message)
    return arguments + (int(float(over[1]) * _UNITS[over[2]]) if over else 0)
