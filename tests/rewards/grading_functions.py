"""Functions that workers run in the tests of the pool, by their path: well-behaved ones and others."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fr3e_jax.verdict import Verdict


def grade(gold: str, answer: str) -> float:
    return float(gold == answer)


def refuse(*arguments: object) -> Verdict:
    return Verdict(0.0, "refused")


def without_end(manner: str) -> object:
    """Recurse. In CPython 3.13.0 a function with ``*arguments`` would do so until memory ends."""
    return without_end(manner)


def behave(manner: str, *more: object) -> object:
    """Misbehave as told; right if that has an end."""
    if manner == "spin":
        while True:
            pass
    if manner == "spin past every signal":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        while True:
            pass
    if manner == "sleep":
        time.sleep(1000)
    if manner == "exit":
        os._exit(0)
    if manner == "crash":
        ctypes.string_at(0)
    if manner == "memory":
        return bytearray(64 << 30) and 1.0
    if manner == "recursion":
        return without_end(manner)
    if manner == "system exit":
        raise SystemExit
    if manner == "interrupt":
        raise KeyboardInterrupt
    if manner == "raise":
        raise KeyError("no such answer")
    return 1.0


def spin_in_a_child() -> float:
    """Waits for a process of its own that computes forever."""
    return float(subprocess.run([sys.executable, "-c", "while True: pass"]).returncode == 0)


def wait_for(go: str, path: str) -> float:
    """Right as soon as the file ``go`` is there; waits without computing."""
    note(path)
    while not Path(go).exists():
        time.sleep(0.01)
    return 1.0


def die_once(marker: str) -> float:
    """Kill the worker the first time; right the second time."""
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(1)
    return 1.0


def note(path: str, *more: object) -> float:
    """Right; adds a line to a file at each call."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return 1.0


def hang_once(path: str) -> float:
    note(path)
    time.sleep(1000)
    return 1.0


def start_a_child(path: str) -> float:
    """Start a process in a session of its own, that would live long; then hang."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(path).write_text(str(child.pid))
    time.sleep(1000)
    return 1.0


def always_wrong(answer: str) -> float:
    return 0.0


always_wrong.canaries = ((("4",), 1.0),)


def worker_pid(*more: object) -> float:
    return os.getpid() / 2**32


def write_nonsense(*more: object) -> float:
    """Write nonsense to all descriptors, the socket to the pool among them."""
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, b"\xff\xff\xff\xff nonsense")
        except OSError:
            continue
    time.sleep(1000)
    return 1.0


def own_verifier(problem, response, finished):
    """As a user would write it."""
    if response == "hang":
        time.sleep(1000)
    return 0.5 * (response == problem.gold) + 0.5 * (problem.extra["bonus"] == response)
