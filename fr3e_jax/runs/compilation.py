"""Counts of the programs that this process compiled or fetched from jax's cache, and the seconds they took."""

from __future__ import annotations

import operator
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fr3e_jax.stores.objects import is_remote

# Events of jax.monitoring. A program from the persistent cache causes the backend event as well: the backend step
# fetches it. Tracing and lowering take time in either case.
PROGRAM = "/jax/core/compile/backend_compile_duration"
_PARTS = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration", PROGRAM)
CACHE_HIT = "/jax/compilation_cache/cache_hits"


class Compilations(NamedTuple):
    """Totals of a process, or the difference of two of them."""

    programs: int = 0  # compiled or fetched from a cache
    cache_hits: int = 0  # fetched from a cache
    seconds: float = 0.0  # wall: tracing, lowering, compiling or fetching; nested traces count once

    def since(self, before: Compilations) -> Compilations:
        return Compilations(*map(operator.sub, self, before))

    def plus(self, other: Compilations) -> Compilations:
        return Compilations(*map(operator.add, self, other))


class _Counter:
    """Listener of jax's events. An outer span's event comes last, so it replaces the spans that it contains."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[int, list[tuple[float, float]]] = {}  # by thread; disjoint
        self.programs, self.cache_hits, self.seconds = 0, 0, 0.0

    def on_event(self, event: str, **details: Any) -> None:
        if event == CACHE_HIT:
            with self._lock:
                self.cache_hits += 1

    def on_duration(self, event: str, duration_secs: float, **details: Any) -> None:
        if event not in _PARTS:
            return
        end = time.perf_counter()
        start = end - duration_secs
        with self._lock:
            self.programs += event == PROGRAM
            spans = self._spans.setdefault(threading.get_ident(), [])
            while spans and spans[-1][0] >= start:
                inner_start, inner_end = spans.pop()
                self.seconds -= inner_end - inner_start
            spans.append((start, end))
            self.seconds += end - start


def open_cache(cache: str) -> None:
    """Let jax keep every compiled program in ``cache``, a folder or an address; "": in none.

    ``JAX_COMPILATION_CACHE_DIR`` comes first.

    Raises:
      OSError: the folder cannot be made.
    """
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if not cache or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    if not is_remote(cache):  # jax itself opens gs:// and s3://
        folder = Path(cache).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        cache = str(folder)
    jax.config.update("jax_compilation_cache_dir", cache)


_counter: _Counter | None = None


def count_compilations() -> None:
    """Start counting in this process; later calls change nothing. Call it before the first program."""
    global _counter
    if _counter is None:
        _counter = _Counter()
        jax.monitoring.register_event_listener(_counter.on_event)
        jax.monitoring.register_event_duration_secs_listener(_counter.on_duration)


def compilations() -> Compilations:
    """Totals of this process since `count_compilations`; zeros before it."""
    if _counter is None:
        return Compilations()
    return Compilations(_counter.programs, _counter.cache_hits, _counter.seconds)
