"""The time in which neither a program nor grading is under way, measured without making the loop wait."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax


class InFlight:
    """Seconds by stage in which nothing is under way; a context manager.

    A program is under way from its call until its results are there. A thread of this object waits for the results; it
    ends with the context.

    Args:
      stage: returns the name of the loop's stage. Idle time belongs to the stage in which it ends.
      clock: returns seconds.
    """

    def __init__(self, stage: Callable[[], str], clock: Callable[[], float] = time.perf_counter):
        self.idle_seconds: dict[str, float] = {}
        self._stage, self._clock, self._owner = stage, clock, threading.get_ident()
        self._lock, self._under_way, self._since = threading.Lock(), 0, clock()
        self._results: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="fr3e-in-flight", daemon=True)

    def __enter__(self) -> InFlight:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._results.put(None)
        self._thread.join()

    def program(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function``, which may return before its results are there: it is under way until they are."""
        return self._noted(function, self._results.put)

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function``, which is under way until it returns."""
        return self._noted(function, lambda _: self._end())

    def end_step(self) -> None:
        """Count the idle time after the last call."""
        with self._lock:
            self._count_idle()

    def _noted(self, function: Callable[..., Any], then: Callable[[Any], None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._owner:  # other threads are no part of a step
                return function(*arguments, **named)
            self._begin()
            try:
                result = function(*arguments, **named)
            except BaseException:
                self._end()
                raise
            then(result)
            return result

        return call

    def _begin(self) -> None:
        with self._lock:
            self._count_idle()
            self._under_way += 1

    def _end(self) -> None:
        with self._lock:
            self._under_way -= 1
            self._since = self._clock()

    def _count_idle(self) -> None:
        if self._under_way:
            return
        now, stage = self._clock(), self._stage()
        self.idle_seconds[stage] = self.idle_seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def _watch(self) -> None:
        while (results := self._results.get()) is not None:
            for leaf in jax.tree.leaves(results):
                try:
                    leaf.block_until_ready()
                except Exception:  # donated to a program that is under way itself, or failed: the loop sees the error
                    pass
            del results
            self._end()
