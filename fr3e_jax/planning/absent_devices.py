"""Compilers for devices that are not there: libtpu, and a CUDA plugin.

They read their environment when jax is first loaded.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from fr3e_jax.configuration import ConfigError
from fr3e_jax.planning.topology import Topology, TopologyError, parse_topology

INSTALL = {
    "tpu": "libtpu to compile for: `make libtpu`, or pip install -r requirements-plan.txt --target DIR; "
    "TPU_LIBRARY_PATH=DIR/libtpu/libtpu.so",
    "gpu": "a CUDA plugin to compile for: `make cuda-plan`, or pip install --no-deps -r requirements-cuda-plan.txt "
    "--target DIR; FR3E_CUDA_PLUGIN=DIR",
}
_PLUGIN = Path("jax_plugins", "xla_cuda12", "xla_cuda_plugin.so")
_ASSEMBLER = Path("nvidia", "cuda_nvcc")


class NoCompiler(ConfigError):
    """The compiler of a topology is not installed."""


class _Card(NamedTuple):
    """A GPU as it reports itself."""

    name: str
    capability: int
    cores: int
    fpus: int  # of a core
    shared: int  # bytes of a core
    l2: int  # MiB
    clock: float  # GHz


_CARDS = {
    "a100": _Card("NVIDIA A100-SXM4-80GB", 8, cores=108, fpus=64, shared=167936, l2=40, clock=1.41),
    "h100": _Card("NVIDIA H100 80GB HBM3", 9, cores=132, fpus=128, shared=233472, l2=50, clock=1.98),
    "h200": _Card("NVIDIA H200 141GB HBM3e", 9, cores=132, fpus=128, shared=233472, l2=50, clock=1.98),
}


def find_libtpu() -> Path | None:
    """The path of ``libtpu.so``: TPU_LIBRARY_PATH, an installed package, or the folder of ``make libtpu``; else None.

    ``make libtpu`` does not install a package, because jax would then look for a TPU in every other process.
    """
    candidates = [Path(os.environ[name]) for name in ("TPU_LIBRARY_PATH",) if os.environ.get(name)]
    if spec := importlib.util.find_spec("libtpu"):
        candidates.append(Path(spec.origin).parent / "libtpu.so")
    candidates.append(Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so")
    return next((path for path in candidates if path.is_file()), None)


def find_cuda() -> Path | None:
    """The folder of the CUDA plugin: FR3E_CUDA_PLUGIN, installed packages, or that of ``make cuda-plan``; else None."""
    candidates = [Path(os.environ[name]) for name in ("FR3E_CUDA_PLUGIN",) if os.environ.get(name)]
    candidates += [Path(sysconfig.get_path("purelib")), Path(sys.prefix) / "cuda-plan"]
    return next((path for path in candidates if (path / _PLUGIN).is_file()), None)


def planning_environment(libtpu: Path | None = None, cuda: Path | None = None) -> dict[str, str]:
    """The environment of a process that plans. It uses no device: jax runs on the CPU; libtpu or CUDA only compile."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "JAX_"))}
    chosen = {"JAX_PLATFORMS": "cpu"}
    if libtpu is not None:
        chosen |= {
            "TPU_LIBRARY_PATH": str(libtpu),
            "TPU_SKIP_MDS_QUERY": "1",  # or it waits for the metadata server of a TPU VM
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or a second process dies on the first one's lock file
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # any type will do: the topology is named later
            "TPU_MIN_LOG_LEVEL": "3",
        }
    if cuda is not None:
        assembler = cuda / _ASSEMBLER
        chosen |= {
            "XLA_FLAGS": f"{inherited.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={assembler}".strip(),
            "PATH": f"{assembler / 'bin'}{os.pathsep}{inherited.get('PATH', '')}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if cuda != Path(sysconfig.get_path("purelib")):  # jax finds installed plugins itself
            chosen["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"cuda:{cuda / _PLUGIN}"
    return inherited | chosen


def enter_planning_environment(libtpu: Path | None = None, cuda: Path | None = None) -> None:
    """Make this process one that plans; jax must not have been loaded."""
    environment = planning_environment(libtpu, cuda)
    os.environ.clear()
    os.environ.update(environment)


def enter_planning_for(name: str, *, compiles: bool = True) -> Topology:
    """Read the name of a topology, and make this process one that plans for it, unless jax was loaded before.

    ``compiles``: its compiler is needed.

    Raises:
      ConfigError: the name cannot be read, or (`NoCompiler`) there is no compiler for it.
    """
    try:
        topology = parse_topology(name)
    except TopologyError as error:
        raise ConfigError(str(error)) from error
    platform = topology.chip.platform
    libtpu = find_libtpu() if platform == "tpu" and compiles else None
    cuda = find_cuda() if platform == "gpu" and compiles else None
    if compiles and not (libtpu or cuda):
        raise NoCompiler(f"--topology {topology.name} needs {INSTALL[platform]}")
    if "jax" not in sys.modules:
        enter_planning_environment(libtpu, cuda)
    return topology


def gpu_target(chip: str, memory_bytes: int, bandwidth: float) -> str:
    """The card as XLA's compiler reads it, in the text format of its ``GpuTargetConfigProto``."""
    card = _CARDS[chip]
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": card.shared,
        "shared_memory_per_block_optin": card.shared - 1024,
        "threads_per_core_limit": 2048,
        "core_count": card.cores,
        "fpus_per_core": card.fpus,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "memory_bandwidth": int(bandwidth),
        "l2_cache_size": card.l2 * 2**20,
        "clock_rate_ghz": card.clock,
        "device_memory_size": memory_bytes,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    lines.append(f"  cuda_compute_capability {{ major: {card.capability} }}")
    versions = {"driver_version": "13.0.0", "runtime_version": "12.8.0", "dnn_version": "9.10.0"}
    lines += [f'  {name}: "{value}"' for name, value in {"name": card.name, **versions}.items()]
    device = "\n".join(["gpu_device_info {", *lines, "}"])
    named = f'platform_name: "CUDA"\ndevice_description_str: "{card.name}"'
    return f"{device}\n{named}\ndnn_version_info {{ major: 9 minor: 10 }}\n"
