"""Calls outside of the decoder that several processes share: each runs its part, and all read all results."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.rollouts.requests import Key


class Running(NamedTuple):
    """A call that was started."""

    result: Future[Any]
    begun: float  # time.monotonic() of its start

    def wait(self, deadline: float | None) -> Any:
        """The result; None if there is none ``deadline`` seconds after the start. None: wait for ever."""
        left = None if deadline is None else max(self.begun + deadline - time.monotonic(), 0.0)
        try:
            return self.result.result(left)
        except concurrent.futures.TimeoutError:
            return None


def start(call: Callable[[], Any], *, at_once: bool, slots: AbstractContextManager | None = None) -> Running:
    """Run ``call``: here, or in a thread that does not keep the process alive; ``slots`` bound their number."""
    running = Running(Future(), time.monotonic())

    def run() -> None:
        with slots or contextlib.nullcontext():
            try:
                running.result.set_result(call())
            except BaseException as error:
                running.result.set_exception(error)

    if at_once:
        run()
    else:
        threading.Thread(target=run, name="fr3e-call", daemon=True).start()
    return running


class SharedCalls:
    """The calls under way of one `RolloutEngine.sample`.

    Args:
      processes: they share the calls.
      what: names the calls in messages.
      kind: the type of a result, a NamedTuple of JSON content.
      wait: gives the result of a call.
    """

    def __init__(
        self, processes: Processes, what: str, kind: Callable[..., Any], wait: Callable[[Running, Key], tuple]
    ):
        self._processes, self._what, self._kind, self._wait = processes, what, kind, wait
        self._running: dict[Key, Running | None] = {}  # None: another process runs it

    def begin_call(self, key: Key, start: Callable[[], Running]) -> None:
        """Start the call of a branch, if it is this process's."""
        self._running[key] = start() if self._processes.is_mine(sum(key)) else None

    def results(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """The results of the calls of ``keys``; waits for them. All processes must ask alike."""
        if not keys:
            return {}
        calls = {key: self._running.pop(key) for key in keys}
        local = [(*key, *self._wait(running, key)) for key, running in calls.items() if running is not None]
        gathered = self._processes.exchange(f"the answers to {len(keys)} {self._what}", local)
        results = {(request, branch): result for rows in gathered for request, branch, *result in rows}
        return {key: self._kind(*results[key]) for key in keys}

    def close(self) -> None:
        """Nothing is open after a call."""
