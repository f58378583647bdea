"""Inside of a worker process: load verifier functions, check them against known verdicts, run jobs one by one.

Requests come as pickles from the parent, answers go back as JSON of a limited length: the parent never unpickles what a
worker says. Imports no jax, and nothing of the grading itself before a request names it.
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
from fr3e_jax.rewards.verdict import Verdict
from fr3e_jax.rewards.verifier import is_number
from fr3e_jax.user_code import import_source

REQUEST_LIMIT = 1 << 30  # bytes; from the parent, which is trusted
ANSWER_LIMIT = 1 << 16
TEXT_LIMIT = 8000  # characters of a traceback or repr in an answer; JSON makes at most six bytes of one
RECURSION_LIMIT = 1000


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
    """Calls the function on its ``canaries``; raises ``AssertionError`` for the first one it grades wrongly."""
    for arguments, expected in getattr(function, "canaries", ()):
        found = function(*arguments)
        reward = found.reward if isinstance(found, Verdict) else found
        if abs(reward - expected) > 1e-9:
            raise AssertionError(f"{spec} gives {reward} for its canary {arguments!r:.500}; expected {expected}")


def answer_of(result: object) -> dict[str, Any]:
    """What a function returned, as an answer to the parent; ranges are checked there."""
    reward, outcome = (result.reward, result.outcome) if isinstance(result, Verdict) else (result, None)
    if not is_number(reward) or not (outcome is None or isinstance(outcome, str)):
        return {"kind": "unusable", "text": f"{result!r:.{TEXT_LIMIT}}"}
    return {"kind": "verdict", "reward": float(reward), "outcome": outcome and outcome[:100]}


class Worker:
    """Answers one request at a time; functions are loaded once."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def answer(self, request: bytes) -> dict[str, Any]:
        """Never raises: what a function or its import raises is told to the parent."""
        try:
            verb, spec, *rest = pickle.loads(request)
        except BaseException:
            return {"kind": "broken", "text": _reason_and_traceback()}
        try:
            return self._run(spec, *rest) if verb == "run" else self._check(spec)
        except BaseException as error:
            # A process that ran out of memory or stack is not to be trusted with another answer.
            retire = isinstance(error, MemoryError | RecursionError)
            if verb == "run":
                return {"kind": "raised", "text": _traceback(), "retire": retire}
            return {"kind": "broken", "text": _reason_and_traceback(), "retire": retire}
        finally:
            sys.setrecursionlimit(RECURSION_LIMIT)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _check(self, spec: str) -> dict[str, Any]:
        if spec not in self._functions:
            self._functions[spec] = load_function(spec)
        check_canaries(self._functions[spec], spec)
        return {"kind": "ready", "threads": threads()}

    def _run(self, spec: str, arguments: tuple[Any, ...], deadline: float) -> dict[str, Any]:
        limit_cpu(deadline)
        return answer_of(self._functions[spec](*arguments))


def threads() -> int:
    """Threads of this process, those that libraries started in C included."""
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()


def limit_cpu(seconds: float) -> None:
    """Ends this process after about ``seconds`` more of CPU time, should the parent be too busy to do it."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _traceback() -> str:
    try:
        return traceback.format_exc(limit=-20)[-TEXT_LIMIT:]
    except BaseException:
        return "an exception that cannot be shown"


def _reason_and_traceback() -> str:
    """First one line for the user: what was raised, and where, unless that was here; then all of it."""
    try:
        error = sys.exc_info()[1]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        known = isinstance(error, SyntaxError) or frame.filename == __file__
        place = "" if known else f" ({frame.filename}, line {frame.lineno})"
        line = " ".join(f"{type(error).__name__}: {error}{place}".split())
        return f"{line[: TEXT_LIMIT // 8]}\n{_traceback()[-TEXT_LIMIT * 7 // 8 + 1 :]}"
    except BaseException:
        return _traceback()


def serve(sock: socket.socket) -> None:
    """Answers requests until the parent closes the socket."""
    worker = Worker()
    while (request := wire.receive(sock, REQUEST_LIMIT)) is not None:
        wire.send(sock, json.dumps(worker.answer(request)).encode())
