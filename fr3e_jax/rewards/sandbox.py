"""Runs a program's tests: the tests in one process, the program in another, which never sees tests, verdict or nonce.

``fr3e_jax.rewards.code`` starts it as ``python -I -S`` in an empty directory. This process is the judge: it confines
itself, forks the process of the program, and only then reads program and tests. Tests call the program's function
through a stub that sends plain values over a socket (``fr3e_jax.rewards.plain``). The judge writes the nonce after the
last test. A program can exit, kill, print, patch or override what it likes, but in its own process only.
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from fr3e_jax.rewards import child_processes, confinement, plain, wire

MESSAGE_LIMIT = 1 << 22  # bytes of one call or result
MODULE_NAME = "candidate"  # not __main__: code under that condition is for programs that run by themselves


class ProgramEnded(BaseException):
    """The process of the program is gone or sends nonsense; not an ``Exception``, which tests could catch."""


class ProgramRaised(Exception):
    """The program raised an exception that is not a built-in one."""


# --- the process of the program -----------------------------------------------------------------------------------


def run_program(sock: socket.socket) -> None:
    """Execute the program that comes over the socket, then call its functions on request."""
    namespace: dict[str, Any] = {"__name__": MODULE_NAME}
    while (message := wire.receive(sock, MESSAGE_LIMIT)) is not None:
        request = plain.loads(message)
        try:
            if isinstance(request, str):
                exec(compile(request, MODULE_NAME, "exec"), namespace)
                answer = ("returned", None, ())
            else:
                name, args, kwargs = request
                answer = ("returned", namespace[name](*args, **kwargs), _changed(args))
            reply = plain.dumps(answer)
        except BaseException as error:
            reply = plain.dumps(("raised", [kind.__name__ for kind in type(error).__mro__], str(error)[:1000]))
        wire.send(sock, reply)


def _changed(args: Iterable[Any]) -> tuple[Any, ...]:
    """The arguments that the call may have changed in place, after it; None for the others."""
    return tuple(arg if isinstance(arg, list | dict | set) else None for arg in args)


# --- the judge ----------------------------------------------------------------------------------------------------


class Stub:
    """A function of the program, as the tests see it."""

    def __init__(self, sock: socket.socket, name: str):
        self._sock, self.__name__ = sock, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        verb, value, rest = ask(self._sock, (self.__name__, list(args), kwargs))
        if verb == "raised":
            raise _exception(value, rest)
        for arg, now in zip(args, rest, strict=False):
            _change(arg, now)
        return value


def ask(sock: socket.socket, request: Any) -> tuple[str, Any, Any]:
    """Send a request to the program's process and return its (verb, value, rest)."""
    message = plain.dumps(request)
    try:
        wire.send(sock, message)
        reply = wire.receive(sock, MESSAGE_LIMIT)
        verb, value, rest = plain.loads(reply or b"")
    except Exception as error:
        raise ProgramEnded from error
    return verb, value, rest


def _exception(kinds: Any, text: Any) -> Exception:
    candidates = [getattr(builtins, str(kind), None) for kind in kinds]
    exceptions = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, Exception)]
    try:
        return exceptions[0](str(text)) if exceptions else ProgramRaised(str(text))
    except Exception:  # UnicodeDecodeError and the like want other arguments
        return ProgramRaised(str(text))


def _change(arg: Any, now: Any) -> None:
    if isinstance(arg, list) and isinstance(now, list):
        arg[:] = now
    elif isinstance(arg, dict | set) and type(now) is type(arg):
        arg.clear()
        arg.update(now)


def run_tests(sock: socket.socket, prefix: str, tests: str, entry_point: str) -> None:
    """Run the tests to their end, or raise.

    ``prefix`` is the problem's own code before the program (imports, functions that the tests use). The tests define
    ``check(candidate)``, as HumanEval's do, or are themselves the checks, as MBPP's.
    """
    namespace: dict[str, Any] = {"__name__": MODULE_NAME}
    exec(compile(prefix, "problem", "exec"), namespace)
    for name in [entry_point] if entry_point else _missing_names(tests, namespace):
        namespace[name] = Stub(sock, name)
    exec(compile(tests, "tests", "exec"), namespace)
    if "check" in namespace and entry_point:
        namespace["check"](Stub(sock, entry_point))


def _missing_names(tests: str, namespace: dict[str, Any]) -> set[str]:
    """The names that the tests use and do not define: the program's functions, where the problem names none."""
    import ast  # takes as long as all other imports together, and is rarely needed

    used, made = set(), set(namespace)
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return used - made - set(vars(builtins))


def judge(sock: socket.socket, request: dict[str, Any]) -> bool:
    """Return whether the program runs and passes its tests."""
    try:
        verb, _, _ = ask(sock, request["program"])
        if verb == "returned":
            run_tests(sock, request["prefix"], request["tests"], request["entry_point"])
            return True
    except BaseException:
        pass
    return False


# --- both ---------------------------------------------------------------------------------------------------------


def fork_program(role: Callable[[socket.socket], None]) -> tuple[socket.socket, int]:
    """Fork a confined process that plays ``role``; return the judge's socket to it and its process id."""
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
        confinement.refuse_calls()
        role(theirs)
    finally:
        os._exit(0)


def main(parent: int, cpu_seconds: int, memory_mb: int) -> None:
    """Read the request as JSON from standard input, run the tests, write the nonce to standard output."""
    child_processes.die_with_parent(parent)
    sys.set_int_max_str_digits(0)
    confinement.limit_resources(cpu_seconds, memory_mb)
    if confinement.isolate():
        confinement.hide_files(os.getcwd(), {sys.base_prefix, sys.prefix})
    confinement.restrict_files(os.getcwd(), {sys.base_prefix, sys.prefix})
    confinement.drop_privileges()
    sock, pid = fork_program(run_program)
    request = json.load(sys.stdin)
    passed = judge(sock, request)
    sock.close()
    os.kill(pid, signal.SIGKILL)
    _, _, usage = os.wait4(pid, 0)
    if passed:
        os.write(1, request["nonce"].encode())
    elif usage.ru_utime + usage.ru_stime > 0.9 * cpu_seconds:  # the kernel counts in ticks
        os.write(1, b"timeout")
    os._exit(0)
