"""Hardware by name (``v5p:4x4x4``, ``v5e:16x16x2slices``, ``h100:8x4``), and the published peaks of its chips."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

_TPU_PAGES = "cloud.google.com/tpu/docs"
_EXAMPLES = "v5e:8x8, v5p:4x4x4 (a v5p-128: its name counts cores, two a chip), v5e:16x16x2slices, h100:8x4"


@dataclass(frozen=True)
class Chip:
    """Published peaks of one chip. Bandwidths are in bytes per second, in one direction, over all links together.

    ``hbm_gib`` of a TPU is the memory its compiler gives to a program (the "available HBM" of an out-of-memory error),
    which is somewhat less than the data sheet's capacity. Of a GPU it is what the card reports, of which jax hands out
    a share (`fr3e_jax.planning.compile.usable_bytes`).
    """

    name: str
    platform: str  # tpu or gpu
    hbm_gib: float
    peak_flops: float  # bfloat16, dense
    hbm_bandwidth: float
    link_bandwidth: float  # ICI to the other chips of the slice, or NVLink to the other GPUs of the host
    network_bandwidth: float  # this chip's share of the link to another slice or host
    dimensions: int  # of the topology
    source: str


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v4", "tpu", 30.75, 275e12, 1228e9, 300e9, 3.1e9, 3, f"{_TPU_PAGES}/v4"),
        Chip("v5e", "tpu", 15.75, 197e12, 819e9, 200e9, 3.1e9, 2, f"{_TPU_PAGES}/v5e"),
        Chip("v5p", "tpu", 95.74, 459e12, 2765e9, 600e9, 6.2e9, 3, f"{_TPU_PAGES}/v5p"),
        Chip("v6e", "tpu", 31.25, 918e12, 1638e9, 400e9, 12.5e9, 2, f"{_TPU_PAGES}/v6e"),
        Chip("a100", "gpu", 79.25, 312e12, 2039e9, 300e9, 25e9, 2, "NVIDIA A100 80GB SXM data sheet; 200 Gb/s a GPU"),
        Chip("h100", "gpu", 79.1, 989e12, 3350e9, 450e9, 50e9, 2, "NVIDIA H100 SXM data sheet; 400 Gb/s a GPU"),
        Chip("h200", "gpu", 141.0, 989e12, 4800e9, 450e9, 50e9, 2, "NVIDIA H200 SXM data sheet; 400 Gb/s a GPU"),
    )
}


class TopologyError(ValueError):
    """The topology cannot be read, or no hardware has it."""


@dataclass(frozen=True)
class Topology:
    """``slices`` groups of linked chips: TPU slices, or hosts whose GPUs are linked by NVLink."""

    chip: Chip
    shape: tuple[int, ...]  # chips of a slice
    slices: int = 1

    @property
    def chips_per_slice(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """The number of chips in all slices; jax sees each as one device."""
        return self.chips_per_slice * self.slices

    @property
    def hosts(self) -> int:
        """The number of hosts: of GPUs one for each slice; a TPU's has 4 chips of a 3-dimensional slice, or 8."""
        if self.chip.platform == "gpu":
            return self.slices
        return self.slices * -(-self.chips_per_slice // (4 if self.chip.dimensions == 3 else 8))

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.shape))
        if self.chip.platform == "gpu":
            return f"{self.chip.name}:{shape}x{self.slices}"
        return f"{self.chip.name}:{shape}" + (f"x{self.slices}slices" if self.slices > 1 else "")

    @property
    def slice_name(self) -> str:
        """The name of one slice in libtpu."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"


def parse_topology(text: str) -> Topology:
    """Read a topology: ``CHIP:AxB`` or ``CHIP:AxBxC``, and perhaps ``xNslices``; of GPUs ``CHIP:GPUS_OF_A_HOSTxHOSTS``.

    Raises:
      TopologyError: the message names the nearest chip, or the number of dimensions that the chip's topologies have.
    """
    match = re.fullmatch(r"([a-z]+\d+[a-z]*):(\d+(?:x\d+)*?)(?:x(\d+)slices)?", text.strip().lower())
    if match is None:
        raise TopologyError(f"--topology {text!r} cannot be read; expected CHIP:SHAPE like {_EXAMPLES}")
    name, shape, slices = match[1], tuple(map(int, match[2].split("x"))), int(match[3] or 1)
    if name not in CHIPS:
        nearest = (difflib.get_close_matches(name, CHIPS, n=1, cutoff=0) or ["v5e"])[0]
        raise TopologyError(f"--topology {text}: no chip {name}; expected {', '.join(CHIPS)}; nearest: {nearest}")
    chip = CHIPS[name]
    if 0 in shape or slices < 1:
        raise TopologyError(f"--topology {text} has a size of 0; expected CHIP:SHAPE like {_EXAMPLES}")
    if chip.platform == "gpu":
        if len(shape) > 2 or slices > 1:
            raise TopologyError(f"--topology {text}: GPUs are given as {name}:GPUs of a hostxHOSTS, like {name}:8x4")
        return Topology(chip, shape[:1], shape[1] if len(shape) == 2 else 1)
    if len(shape) != chip.dimensions:
        example = {2: "4x4", 3: "4x4x4"}[chip.dimensions]
        raise TopologyError(
            f"--topology {text} has {len(shape)} dimensions; slices of {name} have {chip.dimensions}, "
            f"like {name}:{example}"
        )
    return Topology(chip, shape, slices)
