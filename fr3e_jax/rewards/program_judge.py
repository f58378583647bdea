"""The side of the sandbox that has the tests: it calls the program's functions through stubs, or compares its output.

The program's process may be wholly in the hands of the program. So its answers are plain values that stand for
themselves, and what it says of them (a function, an object, an exception) decides nothing. Standard library only.
"""

from __future__ import annotations

import builtins
import contextlib
import socket
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from fr3e_jax.rewards import plain, pytest_stub, wire
from fr3e_jax.rewards.program_process import MESSAGE_LIMIT, MODULE_NAME, TEXT_LIMIT

PROGRAM_MODULES = ("solution", "candidate", "main", "program", "submission", "your_module")  # to tests: the program
ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration)


class ProgramEnded(BaseException):
    """The program's process is gone, or lacks what the tests need; not an ``Exception``, which tests could catch."""


class ProgramRaised(Exception):
    """The program raised an exception that is not a built-in one, or one that would end a loop of the tests."""


class ProgramUnderTest:
    """The program as the tests reach it: its functions, classes and values.

    Attributes:
      calls: calls that the program has answered, by a result or an exception of its own.
      ended: its process is gone, it lacks what the tests ask for, or it sent nonsense; no test may pass after that.
    """

    def __init__(self, sock: socket.socket):
        self._sock, self.calls, self.ended = sock, 0, False

    def execute(self, source: str) -> bool:
        """Run the program's code; return whether it raised nothing."""
        return self._ask("execute", source)[0] == "returned"

    def find(self, name: str, owner: int | None = None) -> Any:
        """A function as a `Stub`, or a plain value; raises ``AttributeError`` if the program has no such name."""
        verb, value, rest = self._ask("find", owner, name)
        if verb == "raised":
            raise _exception(value, rest)
        if verb == "missing":
            raise AttributeError(f"the program has no {name}")
        return Stub(self, name, owner) if verb == "function" else value

    def call(self, owner: int | None, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the program, or a method of one of its objects."""
        verb, value, rest = self._ask("call", owner, name, list(args), kwargs)
        self.calls += 1
        if verb == "raised":
            raise _exception(value, rest)
        for arg, now in zip(args, rest, strict=False):
            _change(arg, now)
        return Instance(self, value) if verb == "object" else value

    def end(self, reason: str) -> NoReturn:
        """End the tests; they have failed, whatever they make of the exception."""
        self.ended = True
        raise ProgramEnded(reason)

    def _ask(self, *request: Any) -> tuple[str, Any, Any]:
        message = plain.dumps(request)
        try:
            wire.send(self._sock, message)
            reply = wire.receive(self._sock, MESSAGE_LIMIT)
            verb, value, rest = plain.loads(reply or b"")
        except Exception:
            self.end("the process of the program is gone")
        return verb, value, rest


class _NoTruth:
    def __bool__(self) -> bool:
        raise TypeError("this is a function or an object of the program, and true or false only for its process")


class Stub(_NoTruth):
    """A function or class of the program, as the tests see it."""

    def __init__(self, program: ProgramUnderTest, name: str, owner: int | None = None):
        self._program, self._owner, self.__name__ = program, owner, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.call(self._owner, self.__name__, args, kwargs)


class Instance(_NoTruth):
    """An object of one of the program's classes, as the tests see it: its methods and plain attributes."""

    def __init__(self, program: ProgramUnderTest, number: int):
        self._program, self._number = program, number

    def __getattr__(self, name: str) -> Any:
        return self._program.find(name, self._number)


def _exception(kinds: Any, text: Any) -> Exception:
    """The nearest built-in exception, save those that end a loop in the judge without a word (``map``, ``zip``)."""
    candidates = [getattr(builtins, str(kind), None) for kind in kinds]
    for kind in candidates:
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ENDS_OF_LOOPS):
            try:
                return kind(str(text))
            except Exception:  # UnicodeDecodeError and the like want other arguments
                break
    return ProgramRaised(str(text))


def _change(arg: Any, now: Any) -> None:
    if isinstance(arg, list) and isinstance(now, list):
        arg[:] = now
    elif isinstance(arg, dict | set) and type(now) is type(arg):
        arg.clear()
        arg.update(now)


class ProgramModule(types.ModuleType):
    """The program as a module that tests import: ``from solution import add``."""

    def __init__(self, name: str, program: ProgramUnderTest, names: Iterable[str]):
        super().__init__(name)
        self._program, self.__all__ = program, list(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.find(name)


def run_tests(program: ProgramUnderTest, prefix: str, tests: Mapping[str, Any]) -> None:
    """Run the tests to their end, or raise.

    ``prefix`` is the problem's own code before the program (imports, functions that the tests use); ``tests`` are the
    fields of ``fr3e_jax.rewards.code_tests.Tests``. They run as a main program does, and then their functions and
    classes, as pytest and unittest run them.
    """
    module = types.ModuleType("__main__")
    namespace = module.__dict__ | {"__name__": MODULE_NAME}
    exec(compile(prefix, "problem", "exec"), namespace)
    module.__dict__.update(namespace, __name__="__main__", __file__="tests.py")
    namespace, entry_point = module.__dict__, tests["entry_point"]
    names = [name for name in tests["names"] if name not in namespace]
    candidate = None
    if entry_point:
        try:
            candidate = program.find(entry_point)
        except AttributeError as error:
            program.end(str(error))
        namespace[entry_point] = candidate
    for name in names:
        with contextlib.suppress(AttributeError):
            namespace[name] = program.find(name)
    available = [name for name in (*names, entry_point) if name in namespace]
    sys.modules |= {name: ProgramModule(name, program, available) for name in PROGRAM_MODULES}
    sys.modules |= {"__main__": module, "pytest": pytest_stub}
    sys.argv = ["tests.py"]
    if "unittest" in tests["source"]:
        import unittest

        unittest.main = lambda *args, **kwargs: None  # they run below
    try:
        exec(compile(tests["source"], "tests", "exec"), namespace)
    except SystemExit as end:
        if end.code not in (None, 0, False):
            raise
    for name in tests["functions"]:
        if not getattr(namespace.get(name), "is_fixture", False):
            pytest_stub.run(namespace[name], namespace, candidate)
    for name in tests["classes"]:
        _run_class(namespace[name], namespace)


def _run_class(kind: Any, namespace: Mapping[str, Any]) -> None:
    unittest = sys.modules.get("unittest")
    if unittest is not None and isinstance(kind, type) and issubclass(kind, unittest.TestCase):
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
        if not result.wasSuccessful():
            raise AssertionError("a test of the class failed")
    elif isinstance(kind, type) and kind.__name__.startswith("Test"):
        pytest_stub.run_class(kind, namespace)


def judge_calls(sock: socket.socket, request: Mapping[str, Any]) -> bool:
    """Return whether the program runs and passes its tests, which must have called it."""
    program = ProgramUnderTest(sock)
    try:
        if not program.execute(request["program"]):
            return False
        run_tests(program, request["prefix"], request["tests"])
    except BaseException:
        return False
    return program.calls > 0 and not program.ended


def judge_outputs(sock: socket.socket, request: Mapping[str, Any], seconds: float) -> bool:
    """Return whether the program writes the expected output for each input, within ``seconds`` of CPU time in all."""
    for text, expected in request["tests"]["pairs"]:
        if seconds <= 0:
            return False
        try:
            wire.send(sock, plain.dumps((request["program"], text, seconds)))
            output, has_ended, used = plain.loads(wire.receive(sock, TEXT_LIMIT) or b"")
        except Exception:
            return False
        seconds -= used
        if not has_ended or not outputs_agree(output, expected):
            return False
    return True


def outputs_agree(output: str, expected: str) -> bool:
    """Return whether a program's output is the expected one, by lines and words.

    White space does not count. A number that is expected with a decimal point may differ by 1e-6 of its size.
    """
    rows, expected_rows = _words(output), _words(expected)
    return len(rows) == len(expected_rows) and all(
        len(row) == len(words) and all(map(_words_agree, row, words))
        for row, words in zip(rows, expected_rows, strict=True)
    )


def _words(text: str) -> list[list[str]]:
    """The words of each line that has some."""
    return [words for line in text.splitlines() if (words := line.split())]


def _words_agree(word: str, expected: str) -> bool:
    if word == expected:
        return True
    try:
        return "." in expected and abs(float(word) - float(expected)) <= 1e-6 * max(1e-3, abs(float(expected)))
    except ValueError:
        return False
