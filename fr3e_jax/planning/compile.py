"""One program on a topology: its memory on each device, and its least time.

Everything is estimated first. Compiling replaces the estimates of memory by figures of the compiled program.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field, replace

import jax
from jax.experimental import topologies

from fr3e_jax.planning.absent_devices import gpu_target
from fr3e_jax.planning.estimate import Estimate, Estimator
from fr3e_jax.planning.targets import Target, device_bytes
from fr3e_jax.planning.topology import Chip, Topology, TopologyError

GIB = 2**30
_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # a newer name, and an older one
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}


@dataclass(frozen=True)
class ProgramPlan:
    """Figures of one program. Bytes are those of one device, FLOPs those of all devices."""

    name: str
    shape: str
    hbm_bytes: int  # that a program and the arrays beside it may use
    peak_bytes: int  # of the program alone; of a refused program, the bytes it asked for
    resident: dict[str, int]  # by estimate: other arrays of the run that stay on the device while the program runs
    flops: int  # of matrix products, by estimate
    read_bytes: int  # through HBM, by estimate: the least that the program reads and writes
    sent_bytes: int  # over the links of a slice or host, by estimate
    sent_between_slices: int  # by estimate; the chips of a slice share them
    largest: dict[str, int] = field(default_factory=dict)  # the largest arrays, by estimate
    positions: int = 0  # positions that one call passes through the network, or samples
    argument_bytes: int = 0  # 0 here and below where nothing was compiled
    temporary_bytes: int = 0
    compile_seconds: float = 0.0
    estimated: bool = True  # nothing was compiled
    refused: bool = False  # the compiler refused it: the program alone does not fit
    floor_seconds: float = 0.0
    dominated_by: str = ""  # the slowest resource: compute, memory or network

    @property
    def total_bytes(self) -> int:
        """Bytes that the device holds while the program runs."""
        return self.peak_bytes + sum(self.resident.values())

    @property
    def share(self) -> float:
        """The share of the chip's memory that is in use."""
        return self.total_bytes / self.hbm_bytes

    @property
    def fits(self) -> bool:
        return not self.refused and self.total_bytes <= self.hbm_bytes


def topology_devices(topology: Topology) -> list:
    """The devices of a topology that is not there, slice after slice or host after host, as the compiler sees them.

    It needs the compiler, libtpu or a CUDA plugin, and the environment of `fr3e_jax.planning.absent_devices`.

    Raises:
      TopologyError: libtpu knows no such slice.
    """
    if topology.chip.platform == "gpu":
        chip = topology.chip
        described = topologies.get_topology_desc(
            platform="cuda",
            target_config=gpu_target(chip.name, int(chip.hbm_gib * GIB), chip.hbm_bandwidth),
            topology=f"1x{topology.slices}x{topology.chips_per_slice}",
        )
        return sorted(described.devices, key=lambda device: device.id)
    options = {"num_slices": topology.slices} if topology.slices > 1 else {}
    if topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=topology.slice_name, **options)
    except Exception as error:  # libtpu raises several kinds
        reason = str(error).splitlines()[0]
        raise TopologyError(
            f"--topology {topology.name}: libtpu has no such slice ({reason}); "
            f"give the shape of one that exists, like {topology.chip.name}:{'x'.join('4' * topology.chip.dimensions)}"
        ) from error
    return sorted(description.devices, key=lambda device: (getattr(device, "slice_index", None) or 0, device.id))


def usable_bytes(chip: Chip) -> int:
    """Bytes that programs get: of a GPU the share that jax hands out, three quarters or XLA_CLIENT_MEM_FRACTION.

    Raises:
      ValueError: the variable is not a share.
    """
    if chip.platform != "gpu":
        return int(chip.hbm_gib * GIB)
    name = next((name for name in _FRACTIONS if os.environ.get(name)), "")
    try:
        fraction = float(os.environ[name]) if name else 0.75
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f"{name}={os.environ[name]} is not a share of the memory above 0 and up to 1, like 0.92")
    return int(fraction * chip.hbm_gib * GIB)


def estimated_plan(name: str, estimator: Estimator, topology: Topology) -> ProgramPlan:
    """The figures of a program by arithmetic."""
    estimate, several = estimator.of(name), topology.slices > 1
    sent = estimate.gathered_bytes + estimate.reduced_bytes
    between = estimate.summed_bytes * several
    if several and topology.chip.platform == "gpu":  # the fsdp axis spans the hosts
        between += estimate.gathered_bytes / topology.chips_per_slice
    plan = ProgramPlan(
        name=name,
        shape=estimate.shape,
        hbm_bytes=usable_bytes(topology.chip),
        peak_bytes=int(estimate.peak_bytes),
        resident={array: int(size) for array, size in estimate.resident.items()},
        flops=int(estimate.flops),
        read_bytes=int(estimate.read_bytes),
        sent_bytes=int(sent + estimate.summed_bytes * (not several)),
        sent_between_slices=int(between),
        largest=_largest_arrays(estimate),
        positions=estimate.positions,
    )
    return with_floor(plan, topology, estimator.devices_of(name))


def compiled_plan(target: Target, estimated: ProgramPlan, topology: Topology) -> ProgramPlan:
    """``estimated`` with the memory of the program that was compiled for the target's devices.

    A program that is too large gives a plan with ``refused``.
    """
    arguments = device_bytes(target.arguments)
    plan = replace(estimated, argument_bytes=arguments, estimated=False)
    started = time.monotonic()
    try:
        compiled = target.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        requested = requested_bytes(str(error), arguments)
        plan = replace(plan, refused=True, peak_bytes=requested, temporary_bytes=requested - arguments)
    else:
        memory = compiled.memory_analysis()
        plan = replace(
            plan,
            argument_bytes=memory.argument_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            peak_bytes=memory.peak_memory_in_bytes,
        )
    return replace(plan, compile_seconds=time.monotonic() - started)


def _largest_arrays(estimate: Estimate, count: int = 5) -> dict[str, int]:
    """Estimated bytes of the ``count`` largest arrays on a device while the program runs."""
    arrays = {name: size for name, size in (estimate.arrays | estimate.resident).items() if size}
    return {name: int(arrays[name]) for name in sorted(arrays, key=arrays.get, reverse=True)[:count]}


def with_floor(plan: ProgramPlan, topology: Topology, devices: int) -> ProgramPlan:
    """The plan with its least time: the longest of computing, reading HBM and sending, each at its published peak.

    All links of a chip count as busy at once, so a collective over one axis of the mesh takes longer. ``devices``: on
    which the program runs.
    """
    chip = topology.chip
    times = {
        "compute": plan.flops / devices / chip.peak_flops,
        "memory": plan.read_bytes / chip.hbm_bandwidth,
        "network": max(plan.sent_bytes / chip.link_bandwidth, plan.sent_between_slices / chip.network_bandwidth),
    }
    slowest = max(times, key=times.get)
    return replace(plan, floor_seconds=times[slowest], dominated_by=slowest)


def requested_bytes(message: str, arguments: int) -> int:
    """The bytes that a refused program asked for in all, read from the compiler's message.

    Some messages leave out the arguments; ``arguments`` is their size in bytes.
    """
    if total := re.search(r"Used ([\d.]+)([KMGT]?) of", message):
        return int(float(total[1]) * _UNITS[total[2]])
    over = re.search(r"\(([\d.]+)([KMGT]?)\) exceeds", message)
    return arguments + (int(float(over[1]) * _UNITS[over[2]]) if over else 0)
