"""How many programs this process compiled, how many of them came from the persistent cache, and the seconds it took."""

from __future__ import annotations

import operator
import threading
import time
from typing import Any, NamedTuple

import jax

# Events of jax.monitoring. A program that the persistent cache holds passes the backend step as well: it is fetched
# there. Tracing and lowering are paid in either case.
_PROGRAM = "/jax/core/compile/backend_compile_duration"
_PARTS = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration", _PROGRAM)
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


class Compilations(NamedTuple):
    """Totals of a process, or the difference of two of them."""

    programs: int = 0  # made ready to run, from the cache or not
    cache_hits: int = 0  # of those, fetched from the persistent cache
    seconds: float = 0.0  # wall: tracing, lowering, compiling or fetching; nested traces count once

    def since(self, before: Compilations) -> Compilations:
        return Compilations(*map(operator.sub, self, before))

    def plus(self, other: Compilations) -> Compilations:
        return Compilations(*map(operator.add, self, other))


class _Counter:
    """Listens to jax. Spans end in the order of their events, so an outer one swallows those that it contains."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[int, list[tuple[float, float]]] = {}  # disjoint, of each thread
        self.programs, self.cache_hits, self.seconds = 0, 0, 0.0

    def on_event(self, event: str, **details: Any) -> None:
        if event == _CACHE_HIT:
            with self._lock:
                self.cache_hits += 1

    def on_duration(self, event: str, duration_secs: float, **details: Any) -> None:
        if event not in _PARTS:
            return
        end = time.perf_counter()
        start = end - duration_secs
        with self._lock:
            self.programs += event == _PROGRAM
            spans = self._spans.setdefault(threading.get_ident(), [])
            while spans and spans[-1][0] >= start:
                inner_start, inner_end = spans.pop()
                self.seconds -= inner_end - inner_start
            spans.append((start, end))
            self.seconds += duration_secs


_counter: _Counter | None = None


def count_compilations() -> None:
    """Starts counting in this process; later calls change nothing. To be called before the first program."""
    global _counter
    if _counter is None:
        _counter = _Counter()
        jax.monitoring.register_event_listener(_counter.on_event)
        jax.monitoring.register_event_duration_secs_listener(_counter.on_duration)


def compilations() -> Compilations:
    """What this process has compiled since `count_compilations`; zeros before it."""
    if _counter is None:
        return Compilations()
    return Compilations(_counter.programs, _counter.cache_hits, _counter.seconds)
