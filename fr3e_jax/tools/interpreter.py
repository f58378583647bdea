"""The process that runs one call of the Python tool: a single confined program with limited output.

``fr3e_jax.tools.python`` starts it in an empty directory, without site packages. It confines itself, forks a process
for the program, reads that process's output and passes it on as JSON. docs/users/code_execution.md lists the limits.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import sys
import traceback

from fr3e_jax.rewards import child_processes, confinement
from fr3e_jax.rewards.sandbox import fork_program

NAME = "<call>"
REQUEST_LIMIT = 1 << 20  # bytes


def run(sock: socket.socket) -> None:
    """Run the program that comes over the socket; send its output and its last error back over it."""
    program = b""
    while chunk := sock.recv(1 << 16):
        program += chunk
    for descriptor in (1, 2):
        os.dup2(sock.fileno(), descriptor)
    sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8", errors="replace")
    failed = False
    try:
        execute(program.decode())
    except SystemExit:
        pass
    except BaseException as error:
        failed = True
        print(last_line(error))
    sys.stdout.flush()
    os._exit(3 if failed else 0)


def execute(program: str) -> None:
    """Run a program as a notebook does: if its last statement is an expression, print the value."""
    tree = ast.parse(program, NAME)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    namespace = {"__name__": "__main__"}
    exec(compile(tree, NAME, "exec"), namespace)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), NAME, "eval"), namespace)
        if value is not None:
            print(value)


def last_line(error: BaseException) -> str:
    """The last line of a traceback: ``ZeroDivisionError: division by zero``. The others name files of this program."""
    return traceback.format_exception_only(error)[-1].strip()


def read_output(sock: socket.socket, limit: int) -> tuple[bytes, bool]:
    """The program's output up to ``limit`` bytes, and whether it was cut."""
    output = b""
    while len(output) <= limit and (chunk := sock.recv(1 << 16)):
        output += chunk
    return output[:limit], len(output) > limit


def main(parent: int, cpu_seconds: int, memory_mb: int, limit: int) -> None:
    """Entry point: read the program from standard input, write its output and outcome as JSON to standard output."""
    child_processes.die_with_parent(parent)
    confinement.confine(cpu_seconds, memory_mb)
    program = sys.stdin.buffer.read(REQUEST_LIMIT)
    sock, pid = fork_program(run)
    sock.sendall(program)
    sock.shutdown(socket.SHUT_WR)
    output, cut = read_output(sock, limit)
    if cut:
        os.kill(pid, signal.SIGKILL)
    sock.close()
    _, status, usage = os.wait4(pid, 0)
    killed = os.WIFSIGNALED(status) and not cut
    slow = killed and usage.ru_utime + usage.ru_stime > 0.5 * cpu_seconds  # the kernel counts in ticks
    end = "timeout" if slow else "killed" if killed else "error" if status else "answered"
    if cut:
        end = "answered"
    os.write(1, json.dumps([output.decode(errors="replace"), end]).encode())
    os._exit(0)
