"""``fr3e train --profile``: a table of where the time of some steps goes, and a trace of the step after them.

The first `WARM_UP_STEPS` steps are not profiled. In a measured step each compiled program and each transfer is waited
for, so that its time is its own. Nothing overlaps then, and a step takes longer than usual.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from fr3e_jax.programs.program import programs_of
from fr3e_jax.runs.background import Background
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.runs.profile_table import COMPILATION, GRADING, PROGRAM, TRANSFER, Cell, Profile
from fr3e_jax.runs.run_directory import RunDirectory, write_json_atomic

WARM_UP_STEPS = 2
"""First steps of a process, not profiled: they compile."""
GRADING_CALLS = {"ended": "grade, or hand over", "verdicts": "wait for verdicts"}
"""Methods that are timed as grading, with their names in the table."""


@dataclass
class _Call:
    """A timed call that has not returned."""

    start: float
    compile_seconds: float
    inner_seconds: float = 0.0


class Stopwatch:
    """Seconds of calls by stage, kind and name; a call's timed calls and compilations are subtracted from its own time.

    Only calls in the thread that made the stopwatch are timed: other threads are no part of a step.
    """

    def __init__(self, stage: Callable[[], str], clock: Callable[[], float] = time.perf_counter):
        self.cells: dict[tuple[str, str, str], Cell] = {}  # by stage, kind, name
        self._stage, self._clock, self._thread = stage, clock, threading.get_ident()
        self._calls: list[_Call] = []

    def timed(self, function: Callable[..., Any], kind: str, name: str) -> Callable[..., Any]:
        """``function`` with its calls timed; all but grading calls wait for their arrays."""
        settle = (lambda result: result) if kind == GRADING else jax.block_until_ready

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*arguments, **named)
            self._calls.append(_Call(self._clock(), compilations().seconds))
            try:
                return settle(function(*arguments, **named))
            finally:
                self._end(kind, name)

        return call

    def _end(self, kind: str, name: str) -> None:
        call = self._calls.pop()
        elapsed = self._clock() - call.start
        compiling = min(compilations().seconds - call.compile_seconds, elapsed - call.inner_seconds)
        stage = self._stage()
        self._cell(stage, kind, name).add(elapsed - call.inner_seconds - compiling)
        if compiling > 0:
            self._cell(stage, COMPILATION, name).add(compiling)
        if self._calls:
            self._calls[-1].inner_seconds += elapsed
            self._calls[-1].compile_seconds += compiling

    def _cell(self, stage: str, kind: str, name: str) -> Cell:
        return self.cells.setdefault((stage, kind, name), Cell())


@contextlib.contextmanager
def timed_calls(stopwatch: Stopwatch, owners: list[object], grading: type) -> Iterator[None]:
    """Within the block, ``stopwatch`` times the compiled programs of ``owners``, transfers and grading."""
    calls: list[tuple[Any, str, str, str]]
    calls = [(jax, "device_put", TRANSFER, "to device"), (jax, "device_get", TRANSFER, "to host")]
    calls += [(grading, method, GRADING, name) for method, name in GRADING_CALLS.items()]
    calls += [(owner, name, PROGRAM, name.strip("_")) for owner in owners for name in programs_of(owner)]
    with contextlib.ExitStack() as stack:
        for owner, attribute, kind, name in calls:
            timed = stopwatch.timed(getattr(owner, attribute), kind, name)
            stack.enter_context(mock.patch.object(owner, attribute, timed))
        yield


class Profiler:
    """After the warm-up: measure ``steps`` steps of a run, then trace one.

    Args:
      steps: number of measured steps; 0: the profiler does nothing.
      run_dir: its ``profile/`` receives ``table.json``, ``table.txt`` and the trace.
      ledger: its stages are the table's stages.
      background: its busy time is reported beside the step's.
      owners: objects and modules that hold compiled programs.
      grading: class with the methods of `GRADING_CALLS`.
    """

    def __init__(
        self,
        steps: int,
        run_dir: RunDirectory,
        ledger: TokenLedger,
        background: Background,
        owners: list[object],
        grading: type,
    ):
        self.steps, self.directory = steps, run_dir.profile
        self.table: Profile | None = None
        self._ledger, self._background = ledger, background
        self._owners, self._grading = owners, grading
        self._stopwatch = Stopwatch(lambda: ledger.current_stage)
        self._seen = 0
        self._measured: list[int] = []
        self._seconds: dict[str, float] = {}
        self._step_seconds = self._background_seconds = 0.0

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Enter around each step of the loop."""
        self._seen += 1
        measured = self._seen - WARM_UP_STEPS
        if not self.steps or measured < 1 or measured > self.steps + 1:
            yield
        elif measured <= self.steps:
            with timed_calls(self._stopwatch, self._owners, self._grading):
                yield from self._measure(step)
            self._write()
        else:
            with _trace(self.directory), jax.profiler.StepTraceAnnotation("step", step_num=step):
                yield

    def _measure(self, step: int) -> Iterator[None]:
        busy, stages, start = self._background.seconds, dict(self._ledger.seconds), time.perf_counter()
        yield
        self._step_seconds += time.perf_counter() - start
        self._background_seconds += self._background.seconds - busy
        for name, seconds in self._ledger.seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds - stages.get(name, 0.0)
        self._measured.append(step)

    def _write(self) -> None:
        """Write the table; called after every measured step, so that a run that ends early leaves its table."""
        self.table = Profile(
            steps=list(self._measured),
            seconds=self._step_seconds,
            stages=dict(self._seconds),
            cells=dict(self._stopwatch.cells),
            background_seconds=self._background_seconds,
        )
        write_json_atomic(self.directory / "table.json", self.table.as_json())
        (self.directory / "table.txt").write_text("\n".join(self.table.lines()) + "\n")

    def report(self) -> list[str]:
        """Lines for a person: the table, and how to look at the trace; empty without a measured step."""
        if self.table is None:
            return []
        files = f"{self.directory / 'table.txt'}, {self.directory / 'table.json'}"
        lines = [*self.table.lines(), f"the same table in files: {files}"]
        traces = sorted(self.directory.glob("**/*.trace.json.gz"))
        if traces:
            lines.append(f"trace of one step: open {traces[-1]} at https://ui.perfetto.dev")
        return lines


@contextlib.contextmanager
def _trace(directory: Path) -> Iterator[None]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own calls would fill most of the file and take most of the time
    jax.profiler.start_trace(directory, profiler_options=options)
    try:
        yield
    finally:
        jax.profiler.stop_trace()
