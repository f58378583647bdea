"""The tasks that go into the worker pool and the replies that come out of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

LOAD_SECONDS = 120.0  # of CPU time, to import a verifier and run its canaries


@dataclass(frozen=True)
class Reply:
    """The result of a job.

    ``verdict``: ``reward`` and ``outcome`` as the function returned them, not yet checked. ``raised``: the function
    raised, ``text`` is its traceback. ``unusable``: it returned neither a number nor a ``Verdict`` but ``text``.
    ``timeout``: it was not done at its deadline. ``worker_died``: twice. ``broken``: no worker can run the function;
    ``text`` says why.
    """

    kind: Literal["verdict", "raised", "unusable", "timeout", "worker_died", "broken"]
    reward: float = 0.0
    outcome: str | None = None
    text: str = ""


@dataclass(eq=False)
class Task:
    """A job in the pool: ``payload`` is the pickled request, ``key`` names its verdict in the caller's cache."""

    function: str
    payload: bytes
    deadline: float
    deliver: Callable[[Reply], None]
    key: Hashable = None
    deaths: int = 0


def load_only(function: str, deliver: Callable[[Reply], None]) -> Task:
    """A task that imports a function, checks its canaries, and does nothing else; its reply is a verdict of 0."""
    return Task(function, b"", LOAD_SECONDS, deliver)
