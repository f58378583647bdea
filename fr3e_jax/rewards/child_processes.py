"""Processes that never outlive their parent, by the operating system's means; standard library only.

Linux calls go through ctypes and return False where the kernel (or the platform) does not have them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Container

PDEATHSIG, DUMPABLE, CHILD_SUBREAPER, NO_NEW_PRIVS = 1, 4, 36, 38  # linux/prctl.h


def prctl(option: int, value: int) -> bool:
    """Return whether the kernel accepted ``prctl(option, value)``."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    return call is not None and call(option, ctypes.c_ulong(value), ctypes.c_ulong(0), 0, 0) == 0


def die_with_parent(parent: int, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for ``signal_number`` when the thread that made this process ends.

    Args:
      parent: process id of the parent; if it is gone already, this process exits at once. 0: no check, as the parent
        is outside of this process's PID namespace.
      signal_number: the signal; SIGKILL does not wait for Python.
    """
    prctl(PDEATHSIG, signal_number)
    if parent and os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> bool:
    """Ask the kernel to make orphaned descendants children of this process, so that ``kill_children`` finds them."""
    return prctl(CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Process ids of the children of this process, zombies included; empty where there is no /proc."""
    parent_id, pids = str(os.getpid()), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError):
            if (
                name.isdecimal() and _stat(name).rpartition(")")[2].split()[1] == parent_id
            ):  # pid (name) state parent ...
                pids.append(int(name))
    return pids


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and of its descendants that run or were waited for; None if the process is gone."""
    with contextlib.suppress(OSError):
        seconds = sum(map(int, _stat(str(pid)).rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
        return seconds + sum(cpu_seconds(child) or 0.0 for child in _children_of(pid))
    return None


def _children_of(pid: int) -> list[int]:
    """Process ids from the kernel's list, which costs less than all of /proc; empty where the kernel keeps none."""
    pids = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
            pids += map(int, file.read().split())
    return pids


def _stat(name: str) -> str:
    with open(f"/proc/{name}/stat", errors="replace") as file:
        return file.read()


def kill_group(leader: int) -> None:
    """Kill a process and the group that it leads. Nothing has reaped it yet, so that the id is still its own."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(leader, signal.SIGKILL)


def kill_children(keep: Container[int] = ()) -> None:
    """Kill and reap every child of this process that is not in ``keep``, and the children that these leave.

    Gives up after a quarter of a second on a child that cannot be killed (another user's, or stuck in the kernel).
    """
    for _ in range(250):
        strays = [pid for pid in children() if pid not in keep]
        if not strays:
            return
        for pid in strays:
            kill_group(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)
