"""Inside a worker process: load verifier functions, check them against known verdicts, run jobs one by one.

Requests come from the parent as pickles; answers go back as JSON of a limited length, so that the parent unpickles
nothing from a worker. This module imports no jax, and no grading function before a request names it.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from fr3e_jax.rewards import wire
from fr3e_jax.rewards.verifier import is_number
from fr3e_jax.user_code import import_source
from fr3e_jax.verdict import Verdict

REQUEST_LIMIT = 1 << 30  # bytes; from the parent, which is trusted
ANSWER_LIMIT = 1 << 16
TEXT_LIMIT = 8000  # characters of a traceback or repr in an answer; JSON makes at most six bytes of one
RECURSION_LIMIT = 1000
SECOND_NET = 2  # times the deadline: CPU time at which the kernel ends a worker that the pool has not ended


def load_function(spec: str) -> Callable[..., Any]:
    """The function that ``package.module:NAME`` or ``FILE.py:NAME`` names; the import's own errors pass through."""
    source, _, name = spec.rpartition(":")
    module = import_source(source)
    try:
        function = attrgetter(name)(module)
    except AttributeError:
        raise AttributeError(f"{source} defines no {name}") from None
    if not callable(function):
        raise TypeError(f"{spec} is {function!r}; expected a function of (problem, response, finished)")
    return function


def check_canaries(function: Callable[..., Any], spec: str) -> None:
    """Call the function on its ``canaries``; raise ``AssertionError`` for the first one it grades wrongly."""
    for arguments, expected in getattr(function, "canaries", ()):
        result = function(*arguments)
        reward = result.reward if isinstance(result, Verdict) else result
        if abs(reward - expected) > 1e-9:
            raise AssertionError(f"{spec} gives {reward} for its canary {arguments!r:.500}; expected {expected}")


def answer_of(result: object) -> dict[str, Any]:
    """The result of a function as an answer to the parent, which checks its range."""
    reward, outcome = (result.reward, result.outcome) if isinstance(result, Verdict) else (result, None)
    if not is_number(reward) or not (outcome is None or isinstance(outcome, str)):
        return {"kind": "unusable", "text": f"{result!r:.{TEXT_LIMIT}}"}
    return {"kind": "verdict", "reward": float(reward), "outcome": outcome and outcome[:100]}


class JobRunner:
    """One worker's functions, each loaded once, and its answers to requests."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def answer(self, request: bytes) -> dict[str, Any]:
        """The answer to one request; exceptions of a function or its import become answers, too."""
        try:
            verb, spec, *rest = pickle.loads(request)
        except BaseException:
            return {"kind": "broken", "text": _reason_and_traceback()}
        try:
            return self._run(spec, *rest) if verb == "run" else self._check(spec)
        except BaseException as error:
            # A process that ran out of memory or stack may answer wrongly from now on.
            retire = isinstance(error, MemoryError | RecursionError)
            if verb == "run":
                return {"kind": "raised", "text": _traceback(), "retire": retire}
            return {"kind": "broken", "text": _reason_and_traceback(), "retire": retire}
        finally:
            sys.setrecursionlimit(RECURSION_LIMIT)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _check(self, spec: str) -> dict[str, Any]:
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))  # that of an earlier job counts no import
        self._functions[spec] = load_function(spec)
        check_canaries(self._functions[spec], spec)
        return {"kind": "ready", "threads": threads()}

    def _run(self, spec: str, arguments: tuple[Any, ...], deadline: float) -> dict[str, Any]:
        limit_cpu(SECOND_NET * deadline)
        return answer_of(self._functions[spec](*arguments))


def threads() -> int:
    """The number of threads of this process, with those that libraries started in C."""
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()


def limit_cpu(seconds: float) -> None:
    """Have the kernel end this process after about ``seconds`` more of CPU time, should the parent not do it."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _traceback() -> str:
    try:
        return traceback.format_exc(limit=-20)[-TEXT_LIMIT:]
    except BaseException:
        return "an exception that cannot be shown"


def _reason_and_traceback() -> str:
    """A line for the user with the error and its place, unless that is in this file; then the whole traceback."""
    try:
        error = sys.exc_info()[1]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        is_located = isinstance(error, SyntaxError) or frame.filename == __file__
        location = "" if is_located else f" ({frame.filename}, line {frame.lineno})"
        line = " ".join(f"{type(error).__name__}: {error}{location}".split())
        return f"{line[: TEXT_LIMIT // 8]}\n{_traceback()[-TEXT_LIMIT * 7 // 8 + 1 :]}"
    except BaseException:
        return _traceback()


def serve(sock: socket.socket) -> None:
    """Tell the parent the process id, then answer requests until it closes the socket."""
    wire.send(sock, json.dumps({"kind": "started", "pid": os.getpid()}).encode())
    runner = JobRunner()
    while (request := wire.receive(sock, REQUEST_LIMIT)) is not None:
        wire.send(sock, json.dumps(runner.answer(request)).encode())
