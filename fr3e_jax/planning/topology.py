"""Hardware by name: ``v5p:4x4x4``, ``v5e:16x16x2slices``, ``h100:8x4``."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

from fr3e_jax.planning.chips import CHIPS, Chip

_EXAMPLES = "v5e:8x8, v5p:4x4x4 (a v5p-128: its name counts cores, two a chip), v5e:16x16x2slices, h100:8x4"


class TopologyError(ValueError):
    """A topology that cannot be read, or that no such hardware has."""


@dataclass(frozen=True)
class Topology:
    """``slices`` groups of chips, in each of which all are linked: TPU slices, or hosts with NVLink."""

    chip: Chip
    shape: tuple[int, ...]  # chips of a slice
    slices: int = 1

    @property
    def chips_per_slice(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """Chips altogether: each is one device to jax."""
        return self.chips_per_slice * self.slices

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.shape))
        if self.chip.platform == "gpu":
            return f"{self.chip.name}:{shape}x{self.slices}"
        return f"{self.chip.name}:{shape}" + (f"x{self.slices}slices" if self.slices > 1 else "")

    @property
    def slice_name(self) -> str:
        """What libtpu calls one slice."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"


def parse_topology(text: str, slices: int = 1) -> Topology:
    """``CHIP:AxB`` or ``CHIP:AxBxC``, with ``xNslices`` behind it (or ``slices``); of GPUs ``GPUs of a hostxHOSTS``.

    Raises:
      TopologyError: naming the nearest chip, or the number of dimensions that the chip's topologies have.
    """
    match = re.fullmatch(r"([a-z]+\d+[a-z]*):(\d+(?:x\d+)*?)(?:x(\d+)slices)?", text.strip().lower())
    if match is None:
        raise TopologyError(f"--topology {text!r} cannot be read; expected CHIP:SHAPE like {_EXAMPLES}")
    name, shape, named = match[1], tuple(map(int, match[2].split("x"))), int(match[3] or 1)
    if name not in CHIPS:
        nearest = (difflib.get_close_matches(name, CHIPS, n=1, cutoff=0) or ["v5e"])[0]
        raise TopologyError(f"--topology {text}: no chip {name}; expected {', '.join(CHIPS)}; nearest: {nearest}")
    if named > 1 and slices > 1 and named != slices:
        raise TopologyError(f"--topology {text} names {named} slices, --slices {slices}; give one of them")
    chip, slices = CHIPS[name], max(named, slices)
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
