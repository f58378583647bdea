"""``fr3e train --profile``: where the time of some warm steps goes, a trace of one more, and what others leave idle.

While steps are measured, every compiled program and every transfer is waited for, so that its time is its own; nothing
then overlaps, and a step takes longer than it otherwise would. The step behind them is traced. In as many steps behind
that one, which run as usual, only the time is measured in which neither a program nor grading is under way.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from fr3e_jax.loop.grading import Grading
from fr3e_jax.programs import exploration
from fr3e_jax.runs.background import Background
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.runs.idle_time import InFlight
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.runs.profile_table import COMPILATION, GRADING, PROGRAM, TRANSFER, Cell, Profile, UsualSteps
from fr3e_jax.runs.run_directory import RunDirectory, write_json_atomic

WARM_UP_STEPS = 2
"""First steps of a process, not profiled: they compile."""


@dataclass
class _Call:
    """A timed call that is going on."""

    start: float
    compile_seconds: float
    inner_seconds: float = 0.0


class Stopwatch:
    """Adds up the seconds of calls by stage and name, each call less the timed calls and compilations within it.

    Calls of other threads than the one that made the stopwatch go untimed: they are not part of a step's time.
    """

    def __init__(self, stage: Callable[[], str], clock: Callable[[], float] = time.perf_counter):
        self.cells: dict[tuple[str, str, str], Cell] = {}  # by stage, kind, name
        self._stage, self._clock, self._thread = stage, clock, threading.get_ident()
        self._calls: list[_Call] = []

    def timed(self, function: Callable[..., Any], kind: str, name: str) -> Callable[..., Any]:
        """``function``, with its calls timed; until their results are there, where they are of the device."""
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
def replaced(owner: Any, changes: dict[str, Any]) -> Iterator[None]:
    """Attributes of ``owner`` set to other values within the block."""
    own = vars(owner)
    before = {name: own[name] for name in changes if name in own}
    try:
        for name, value in changes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name in changes:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


def compiled_programs(owner: object | ModuleType) -> dict[str, Callable[..., Any]]:
    """The ``jax.jit`` functions among the attributes of an object or a module."""
    return {
        name: value for name, value in vars(owner).items() if callable(value) and isinstance(value, jax.stages.Wrapped)
    }


@contextlib.contextmanager
def timed_calls(stopwatch: Stopwatch, owners: list[object]) -> Iterator[None]:
    """Within the block ``stopwatch`` times the compiled programs of ``owners``, transfers and grading."""
    with contextlib.ExitStack() as stack:
        for owner in owners:
            programs = compiled_programs(owner).items()
            timed = {name: stopwatch.timed(program, PROGRAM, name.strip("_")) for name, program in programs}
            stack.enter_context(replaced(owner, timed))
        to_device, to_host = jax.device_put, jax.device_get
        transfers = {
            "device_put": stopwatch.timed(to_device, TRANSFER, "to device"),
            "device_get": stopwatch.timed(to_host, TRANSFER, "to host"),
        }
        stack.enter_context(replaced(jax, transfers))
        grading = {
            "ended": stopwatch.timed(Grading.ended, GRADING, "grade, or hand over"),
            "verdicts": stopwatch.timed(Grading.verdicts, GRADING, "wait for verdicts"),
        }
        stack.enter_context(replaced(Grading, grading))
        yield


@contextlib.contextmanager
def noted_calls(in_flight: InFlight, owners: list[object]) -> Iterator[None]:
    """Within the block ``in_flight`` hears of the compiled programs of ``owners`` and of grading."""
    with contextlib.ExitStack() as stack:
        for owner in owners:
            programs = compiled_programs(owner).items()
            stack.enter_context(replaced(owner, {name: in_flight.program(program) for name, program in programs}))
        grading = {name: in_flight.call(getattr(Grading, name)) for name in ("ended", "verdicts")}
        stack.enter_context(replaced(Grading, grading))
        yield


class Profiler:
    """Measures ``steps`` steps of a run after its warm-up, traces one, and looks on for as many more.

    Args:
      steps: how many to measure; 0: the profiler does nothing.
      run_dir: whose ``profile/`` gets ``table.json``, ``table.txt`` and the trace.
      ledger: whose stages are the table's.
      background: whose busy time is reported beside the step's.
      owners: objects and modules that hold compiled programs.
    """

    def __init__(
        self,
        steps: int,
        run_dir: RunDirectory,
        ledger: TokenLedger,
        background: Background,
        owners: list[object],
    ):
        self.steps, self.directory = steps, run_dir.profile
        self.table: Profile | None = None
        self._ledger, self._background = ledger, background
        self._owners = [*owners, exploration]
        self._stopwatch = Stopwatch(lambda: ledger.current_stage)
        self._seen = 0
        self._measured: list[int] = []
        self._usual = UsualSteps()
        self._seconds: dict[str, float] = {}
        self._step_seconds = self._background_seconds = 0.0

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """To be put around a step of the loop."""
        self._seen += 1
        number = self._seen - WARM_UP_STEPS
        if not self.steps or number < 1 or number > 2 * self.steps + 1:
            yield
        elif number <= self.steps:
            with timed_calls(self._stopwatch, self._owners):
                yield from self._measure(step)
            self._write()
        elif number == self.steps + 1:
            with _trace(self.directory), jax.profiler.StepTraceAnnotation("step", step_num=step):
                yield
        else:
            yield from self._look_on(step)
            self._write()

    def _look_on(self, step: int) -> Iterator[None]:
        compiled, start = compilations().seconds, time.perf_counter()
        with InFlight(lambda: self._ledger.current_stage) as in_flight, noted_calls(in_flight, self._owners):
            yield
            in_flight.end_step()
        self._usual.seconds += time.perf_counter() - start - (compilations().seconds - compiled)
        for stage, seconds in in_flight.idle_seconds.items():
            self._usual.idle[stage] = self._usual.idle.get(stage, 0.0) + seconds
        self._usual.steps.append(step)

    def _measure(self, step: int) -> Iterator[None]:
        busy, stages, start = self._background.seconds, dict(self._ledger.seconds), time.perf_counter()
        yield
        self._step_seconds += time.perf_counter() - start
        self._background_seconds += self._background.seconds - busy
        for name, seconds in self._ledger.seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds - stages.get(name, 0.0)
        self._measured.append(step)

    def _write(self) -> None:
        """After every measured step, so that a run that ends early leaves what it measured."""
        self.table = Profile(
            steps=list(self._measured),
            seconds=self._step_seconds,
            stages=dict(self._seconds),
            cells=dict(self._stopwatch.cells),
            background_seconds=self._background_seconds,
            usual=self._usual if self._usual.steps else None,
        )
        write_json_atomic(self.directory / "table.json", self.table.as_json())
        (self.directory / "table.txt").write_text("\n".join(self.table.lines()) + "\n")

    def report(self) -> list[str]:
        """Lines for a person: the table, and how to look at the trace; none without a measured step."""
        if self.table is None:
            return []
        lines = [*self.table.lines(), f"the same: {self.directory / 'table.txt'}, {self.directory / 'table.json'}"]
        traces = sorted(self.directory.glob("**/*.trace.json.gz"))
        if traces:
            lines.append(f"trace of one step: open {traces[-1]} at https://ui.perfetto.dev")
        return lines


@contextlib.contextmanager
def _trace(directory: Path) -> Iterator[None]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own calls would be most of the file, and of the time
    jax.profiler.start_trace(directory, profiler_options=options)
    try:
        yield
    finally:
        jax.profiler.stop_trace()
