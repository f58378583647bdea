"""The parent's side of the planning process: start it in an environment where libtpu compiles without a TPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

INSTALL = "`make libtpu`, or pip install -r requirements-plan.txt --target DIR; TPU_LIBRARY_PATH=DIR/libtpu/libtpu.so"


class PlanningFailed(RuntimeError):
    """The planning process ended without an answer."""


def find_libtpu() -> Path | None:
    """The path of ``libtpu.so``: TPU_LIBRARY_PATH, an installed package, or the folder of ``make libtpu``; else None.

    ``make libtpu`` does not install a package, because jax would then look for a TPU in every other process.
    """
    places = [Path(os.environ[name]) for name in ("TPU_LIBRARY_PATH",) if os.environ.get(name)]
    if spec := importlib.util.find_spec("libtpu"):
        places.append(Path(spec.origin).parent / "libtpu.so")
    places.append(Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so")
    return next((place for place in places if place.is_file()), None)


def environment(libtpu: Path | None) -> dict[str, str]:
    """The environment of the planning process. It uses no device: jax runs on the CPU, and libtpu only compiles."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "JAX_"))}
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
    return kept | chosen


def run_planner(request: dict[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """The answer of `fr3e_jax.planning.__main__` to ``request``. ``progress`` is called with a line for each program.

    Raises:
      ValueError: the recipe or the command line has a mistake.
      PlanningFailed: the process ended without an answer; the message has the last lines that it wrote.
    """
    libtpu = None if request["estimate"] else find_libtpu()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "fr3e_jax.planning"],
            env=environment(libtpu),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            process.stdin.write(json.dumps(request))
            process.stdin.close()
            answer = _read_answer(process, progress)
        finally:
            process.kill()  # does nothing to a process that has ended
            process.wait()
            process.stdout.close()
        if answer is None:
            errors.seek(0)
            last = "\n".join(errors.read().splitlines()[-20:])
            code = process.returncode
            raise PlanningFailed(f"the planning process ended with exit code {code} and without an answer:\n{last}")
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


def _read_answer(process: subprocess.Popen, progress: Callable[[str], None]) -> dict[str, Any] | None:
    for line in process.stdout:
        if not line.startswith("{"):
            continue  # a library's output
        said = json.loads(line)
        if "progress" not in said:
            process.wait()
            return said
        progress(said["progress"])
    process.wait()
    return None
