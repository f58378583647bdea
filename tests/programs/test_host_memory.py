"""Freed memory stays with the process, so that a later allocation touches no fresh pages."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from fr3e_jax.programs import host_memory
from fr3e_jax.programs.host_memory import on_host_only

# Blocks are allocated by hand: the addresses of a program's blocks depend on the other allocations of its threads.
BLOCKS = """
import ctypes, jax.monitoring, resource, threading
from fr3e_jax.programs.host_memory import COMPILED, fit_host_memory, keep_host_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
size = 64 << 20  # larger than any block that glibc keeps by itself
resident = lambda: int(open("/proc/self/statm").read().split()[1])
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def blocks(count):
    for _ in range(count):
        block = libc.malloc(size)
        libc.memset(block, 1, size)
        libc.free(block)
before = resident()
for keep in (False, True):
    assert not keep or (keep_host_memory() and keep_host_memory())  # a second call listens no second time
    fit_host_memory(10**6)
    blocks(1)
    first = faults()
    blocks(10)
    print(faults() - first)
for seconds in (0.01, 10.0):
    jax.monitoring.record_event_duration_secs(COMPILED, seconds)
    [thread.join() for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    print(resident() - before)
fit_host_memory(10**9)
first = faults()
blocks(10)
print(faults() - first)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt and malloc_trim are glibc's")
def test_large_blocks_touch_no_fresh_pages_again_unless_a_long_compilation_or_a_large_network_gives_them_back():
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-c", BLOCKS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # Page faults, resident pages, page faults.
    left, kept, after_short, after_long, of_a_large_network = map(int, done.stdout.split())
    assert kept < left / 5 and of_a_large_network > left / 2
    assert after_short > 16000 > 4000 > after_long


@pytest.fixture
def set_platforms():
    """Set jax_platforms without starting a backend."""
    before = jax.config.jax_platforms
    yield lambda platforms: jax.config.update("jax_platforms", platforms)
    jax.config.update("jax_platforms", before)


@pytest.mark.parametrize(
    ("platforms", "expected"), [("cpu", True), ("cpu,tpu", True), ("tpu,cpu", False), ("cuda", False)]
)
def test_on_host_only_reads_the_first_platform(set_platforms, platforms, expected):
    set_platforms(platforms)
    assert on_host_only() is expected


def test_on_host_only_is_false_if_an_accelerator_is_installed_and_none_chosen(set_platforms, monkeypatch):
    set_platforms(None)
    installed: list[str] = []
    monkeypatch.setattr(host_memory, "entry_points", lambda group: installed)
    monkeypatch.setattr(host_memory.importlib.util, "find_spec", lambda name: None)
    assert on_host_only()
    installed.append("cuda")
    assert not on_host_only()
