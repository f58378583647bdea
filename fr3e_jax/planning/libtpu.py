"""libtpu compiles programs for TPUs that are not there. It reads its environment when jax is first loaded."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

INSTALL = "`make libtpu`, or pip install -r requirements-plan.txt --target DIR; TPU_LIBRARY_PATH=DIR/libtpu/libtpu.so"


def find_libtpu() -> Path | None:
    """The path of ``libtpu.so``: TPU_LIBRARY_PATH, an installed package, or the folder of ``make libtpu``; else None.

    ``make libtpu`` does not install a package, because jax would then look for a TPU in every other process.
    """
    candidates = [Path(os.environ[name]) for name in ("TPU_LIBRARY_PATH",) if os.environ.get(name)]
    if spec := importlib.util.find_spec("libtpu"):
        candidates.append(Path(spec.origin).parent / "libtpu.so")
    candidates.append(Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so")
    return next((path for path in candidates if path.is_file()), None)


def planning_environment(libtpu: Path | None) -> dict[str, str]:
    """The environment of a process that plans. It uses no device: jax runs on the CPU, and libtpu only compiles."""
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
    return inherited | chosen


def enter_planning_environment(libtpu: Path | None) -> None:
    """Make this process one that plans; jax must not have been loaded."""
    environment = planning_environment(libtpu)
    os.environ.clear()
    os.environ.update(environment)
