"""What a chip can do at most, as its maker publishes it.

``hbm_gib`` of a TPU is what its compiler gives to a program (the "available HBM" of its out-of-memory error), somewhat
less than the capacity on the data sheet; of a GPU it is the data sheet's capacity in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

_TPU_PAGES = "cloud.google.com/tpu/docs"


@dataclass(frozen=True)
class Chip:
    """Peaks of one chip; bandwidths in bytes per second, in one direction, of all its links together."""

    name: str
    platform: str  # tpu: programs are compiled for it; gpu: estimated
    hbm_gib: float
    peak_flops: float  # bfloat16, dense
    hbm_bandwidth: float
    link_bandwidth: float  # ICI to the other chips of the slice, or NVLink to the other GPUs of the host
    network_bandwidth: float  # to another slice or host, this chip's share
    dimensions: int  # of the topology
    source: str


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v4", "tpu", 30.75, 275e12, 1228e9, 300e9, 3.1e9, 3, f"{_TPU_PAGES}/v4"),
        Chip("v5e", "tpu", 15.75, 197e12, 819e9, 200e9, 3.1e9, 2, f"{_TPU_PAGES}/v5e"),
        Chip("v5p", "tpu", 95.74, 459e12, 2765e9, 600e9, 6.2e9, 3, f"{_TPU_PAGES}/v5p"),
        Chip("v6e", "tpu", 31.25, 918e12, 1638e9, 400e9, 12.5e9, 2, f"{_TPU_PAGES}/v6e"),
        Chip("a100", "gpu", 74.5, 312e12, 2039e9, 300e9, 25e9, 2, "NVIDIA A100 80GB SXM data sheet; 200 Gb/s a GPU"),
        Chip("h100", "gpu", 74.5, 989e12, 3350e9, 450e9, 50e9, 2, "NVIDIA H100 SXM data sheet; 400 Gb/s a GPU"),
        Chip("h200", "gpu", 131.3, 989e12, 4800e9, 450e9, 50e9, 2, "NVIDIA H200 SXM data sheet; 400 Gb/s a GPU"),
    )
}
