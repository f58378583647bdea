"""A confined process and its directory, seen from outside: start, size and removal; standard library only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fr3e_jax.rewards import child_processes
from fr3e_jax.rewards.confinement import MEGABYTE, SCRATCH_FILES, SCRATCH_MB

LOOK_SECONDS = 0.1  # between two looks at the directory
BOOT = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
module = importlib.import_module(sys.argv[2])
del sys.path[0]
module.main(*map(int, sys.argv[3:]))
"""


def run_confined(module: str, limits: Sequence[int], request: bytes, directory: str, seconds: float) -> bytes | None:
    """The output of ``module.main(this process's id, *limits)`` in a process of its own; None: see `communicate`.

    Args:
      module: confines itself before it runs foreign code.
      limits: further arguments of its ``main``.
      request: its standard input.
      directory: its working directory, empty.
      seconds: after which it is killed.
    """
    root = str(Path(__file__).resolve().parents[2])
    arguments = [root, module, str(os.getpid()), *map(str, limits)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": directory, "TMPDIR": directory, "LANG": "C.UTF-8"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-s", "-S", "-c", BOOT, *arguments],  # not -I: it would ignore the hash seed
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        env=environment | {"PYTHONHASHSEED": "0"},
        start_new_session=True,
    )
    return communicate(process, request, directory, seconds)


def communicate(process: subprocess.Popen[bytes], request: bytes, directory: str, seconds: float) -> bytes | None:
    """Send ``request`` to a sandbox and return its output; None: killed, as it did not end in ``seconds``.

    Where the kernel itself does not bound the directory's content, this function looks at the directory ten times a
    second. It kills the sandbox, with output ``b""``, if the directory holds too much.
    """
    unsent: bytes | None = request
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        try:
            return process.communicate(unsent, timeout=max(0.0, min(left, LOOK_SECONDS)))[0]
        except subprocess.TimeoutExpired:
            unsent = None  # a call that timed out has kept it
            late, full = left <= LOOK_SECONDS, is_full(directory)
        if late or full:
            child_processes.kill_group(process.pid)
            process.communicate()
            return None if late else b""


def is_full(directory: str) -> bool:
    """Return whether more than ``SCRATCH_FILES`` files and folders, or ``SCRATCH_MB``, lie below ``directory``."""
    waiting, files, size = [directory], 0, 0
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                files += 1
                if files > SCRATCH_FILES or size > SCRATCH_MB * MEGABYTE:
                    return True
                with contextlib.suppress(OSError):  # gone since
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return size > SCRATCH_MB * MEGABYTE


def remove(directory: str) -> None:
    """Remove a directory with all that is below it, however deep, and folders that nobody may read."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(directory, ignore_errors=True)
    if os.path.lexists(directory):
        for command in (("chmod", "-R", "u+rwx"), ("rm", "-rf")):
            subprocess.run([*command, directory], stderr=subprocess.DEVNULL, check=False)
