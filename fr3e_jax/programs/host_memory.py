"""Reuse of the memory that compiled programs work in, where they run on the host's processors.

XLA on CPU takes one block for the temporaries of a run of a program and gives it back at the end. glibc maps such large
blocks anew each time, so every run touches fresh pages, each of which costs a page fault: a third of the time of a
training step where that was measured (docs/developers/performance_notebook.md).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import threading
from importlib.metadata import entry_points

import jax

# Of <malloc.h>; the values are part of glibc's interface.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
COMPILED = "/jax/core/compile/backend_compile_duration"  # jax.monitoring's event: a program was compiled or fetched
_LONG_COMPILATION = 0.1  # seconds; a shorter one leaves little memory free, and giving back takes some milliseconds
_SETTLED = 0.5  # seconds after a compilation
_LARGEST = 2**31 - 1  # the largest int: up to 2 GiB at the end of the heap are kept
_KEPT_UP_TO = 100_000_000  # parameters
_LARGE, _MAPPED = 32 * 2**20, 65536  # glibc's largest threshold in bytes, and its own number of blocks


def on_host_only() -> bool:
    """Return whether jax will compute on the host's processors. Starts no backend."""
    platforms = jax.config.jax_platforms
    if platforms:
        return platforms.split(",")[0] == "cpu"
    return not entry_points(group="jax_plugins") and importlib.util.find_spec("libtpu") is None


def keep_host_memory() -> bool:
    """Keep freed blocks with the process for the next run of a program; return whether that was done.

    Call before the first array is made: existing threads have heaps of their own, too small for large blocks. Does
    nothing if arrays will not live in host memory, or without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not on_host_only():
        return False
    # One heap for all threads; no large block is mapped on its own; free memory at the heap's end is kept.
    done = all([mallopt(_M_ARENA_MAX, 1), mallopt(_M_MMAP_MAX, 0), mallopt(_M_TRIM_THRESHOLD, _LARGEST)])
    if done:
        _give_back_after_compiling()
    return done


def fit_host_memory(parameters: int) -> None:
    """Give large blocks back when they are freed, for a network whose steps take so long that fresh pages are little.

    Gigabytes would be kept otherwise. Call it once the network's size is known, before its programs run.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and parameters > _KEPT_UP_TO and on_host_only():
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_MMAP_MAX, _MAPPED)


@functools.cache  # once in a process
def _give_back_after_compiling() -> None:
    """Return the memory that compiling a program leaves free, up to 300 MB, soon after: no run would reuse it.

    At the event itself the compiler's own objects still exist.
    """
    trim = ctypes.CDLL(None).malloc_trim

    def on_duration(event: str, seconds: float, **details: object) -> None:
        if event == COMPILED and seconds > _LONG_COMPILATION:
            later = threading.Timer(_SETTLED, trim, [0])
            later.daemon = True
            later.start()

    jax.monitoring.register_event_duration_secs_listener(on_duration)
