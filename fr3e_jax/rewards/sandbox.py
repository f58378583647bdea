"""Runs a program's tests: the tests in one process, the program in another, which never sees tests, verdict or nonce.

``fr3e_jax.rewards.code`` starts it without site packages in an empty directory. This process is the judge: it confines
itself, forks the process of the program, and only then reads program and tests. Tests call the program's functions
through stubs that send plain values over a socket (``fr3e_jax.rewards.plain``), or give it inputs and compare outputs.
The judge writes the nonce after the last test. A program can exit, kill, print, patch or override what it likes, but
in its own process only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable

from fr3e_jax.rewards import child_processes, confinement
from fr3e_jax.rewards.program_judge import judge_calls, judge_outputs
from fr3e_jax.rewards.program_process import run_program, run_scripts


def fork_program(role: Callable[[socket.socket], None], *, confined: bool = True) -> tuple[socket.socket, int]:
    """Fork a process that plays ``role``; return the judge's socket to it and its process id.

    ``confined``: no system call that the program must not make. Else ``role`` confines what it starts.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return ours, pid
    try:
        child_processes.die_with_parent(0)
        ours.close()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        if confined:
            confinement.refuse_calls()
        role(theirs)
    finally:
        os._exit(0)


def main(parent: int, cpu_seconds: int, memory_mb: int, has_inputs: int) -> None:
    """Read the request as JSON from standard input, run the tests, write the nonce to standard output.

    ``has_inputs``: the tests are pairs of input and output.
    """
    child_processes.die_with_parent(parent)
    sys.set_int_max_str_digits(0)
    confinement.confine(cpu_seconds, memory_mb)
    sock, pid = fork_program(run_scripts, confined=False) if has_inputs else fork_program(run_program)
    request = json.load(sys.stdin)
    passed = judge_outputs(sock, request, cpu_seconds) if has_inputs else judge_calls(sock, request)
    sock.close()
    os.kill(pid, signal.SIGKILL)
    _, _, usage = os.wait4(pid, 0)
    if passed:
        os.write(1, request["nonce"].encode())
    elif usage.ru_utime + usage.ru_stime > 0.9 * cpu_seconds:  # the kernel counts in ticks
        os.write(1, b"timeout")
    os._exit(0)
