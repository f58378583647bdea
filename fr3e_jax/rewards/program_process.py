"""The side of the sandbox that has the program and neither tests nor expected values; standard library only.

For tests that call functions, one process executes the program and answers calls. For tests of input and output, the
program runs by itself, in a process of its own for each input.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import socket
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO, NoReturn

from fr3e_jax.rewards import child_processes, confinement, plain, wire

MESSAGE_LIMIT = 1 << 22  # bytes of one call or result
TEXT_LIMIT = 1 << 27  # bytes of one input or output, as JSON; a file of the program is at most 16 MiB
MODULE_NAME = "candidate"  # not __main__: code under that condition is for programs that run by themselves
OPEN_FILES = 256


class ProgramServer:
    """The program in its process: executes it, then looks up its names and calls its functions on request."""

    def __init__(self) -> None:
        self._namespace: dict[str, Any] = {"__name__": MODULE_NAME}
        self._objects: list[Any] = []  # of the program's classes, which tests hold by their number

    def serve(self, sock: socket.socket) -> None:
        while (message := wire.receive(sock, MESSAGE_LIMIT)) is not None:
            try:
                verb, *request = plain.loads(message)
                reply = plain.dumps(getattr(self, f"_{verb}")(*request))
            except BaseException as error:
                reply = plain.dumps(("raised", [kind.__name__ for kind in type(error).__mro__], str(error)[:1000]))
            wire.send(sock, reply)

    def _execute(self, program: str) -> tuple[str, Any, Any]:
        exec(compile(program, MODULE_NAME, "exec"), self._namespace)
        return "returned", None, ()

    def _find(self, owner: int | None, name: str) -> tuple[str, Any, Any]:
        """Say what a name is: a function or class, a plain value, or nothing."""
        try:
            value = self._value(owner, name)
        except (NameError, AttributeError):
            return "missing", None, ()
        return ("function", None, ()) if callable(value) else ("returned", value, ())

    def _call(self, owner: int | None, name: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[str, Any, Any]:
        function = self._value(owner, name)
        result = function(*args, **kwargs)
        if isinstance(function, type) and function is not type and type(result) is function:
            with contextlib.suppress(plain.NotPlain):  # an int or list, of a subclass
                plain.dumps(result)
                return "returned", result, _changed(args)
            self._objects.append(result)
            return "object", len(self._objects) - 1, _changed(args)
        return "returned", result, _changed(args)

    def _value(self, owner: int | None, name: str) -> Any:
        if owner is not None:
            return getattr(self._objects[owner], name)
        try:
            return eval(name, self._namespace)  # a name, or what a data set calls it: Solution().add
        except NameError:
            if not name.isidentifier() or "Solution" not in self._namespace:
                raise
            return getattr(self._namespace["Solution"](), name)


def run_program(sock: socket.socket) -> None:
    """Play the program of tests that call its functions."""
    ProgramServer().serve(sock)


def _changed(args: Iterable[Any]) -> tuple[Any, ...]:
    """The arguments that the call may have changed in place, after it; None for the others."""
    return tuple(arg if isinstance(arg, list | dict | set) else None for arg in args)


def run_scripts(sock: socket.socket) -> None:
    """Run the program by itself, once for each input that comes over the socket, and send its output.

    This process is trusted and confines each run. It never sees an expected output.
    """
    while (message := wire.receive(sock, TEXT_LIMIT)) is not None:
        program, text, seconds = plain.loads(message)
        with _unnamed_file() as source, _unnamed_file() as target:
            source.write(text.encode(errors="surrogatepass"))
            source.seek(0)
            pid = os.fork()
            if not pid:
                _run_script(program, source.fileno(), target.fileno(), math.ceil(seconds))
            _, status, usage = os.wait4(pid, 0)
            target.seek(0)
            output = target.read().decode(errors="replace")
        wire.send(sock, plain.dumps((output, status == 0, usage.ru_utime + usage.ru_stime)))


def _unnamed_file() -> BinaryIO:
    """A file in the working directory that has no name; ``tempfile`` takes longer than all other imports."""
    file = open(".stream", "x+b")
    os.unlink(".stream")
    return file


def _run_script(program: str, source: int, target: int, seconds: int) -> NoReturn:
    status = 1
    try:
        child_processes.die_with_parent(0)
        os.dup2(source, 0)
        os.dup2(target, 1)
        os.closerange(3, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        confinement.refuse_calls()
        sys.stdin, sys.stdout = open(0, errors="replace"), open(1, "w", errors="replace")
        sys.argv = ["program.py"]
        try:
            exec(compile(program, "program.py", "exec"), {"__name__": "__main__", "__file__": "program.py"})
            status = 0
        except SystemExit as end:
            status = int(end.code not in (None, 0))
        sys.stdout.flush()
    finally:
        os._exit(status)
