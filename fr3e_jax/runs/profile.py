"""``runtime.profile_steps``: a table of where the time of some steps goes, and a trace of the step after them.

The first `WARM_UP_STEPS` steps are not profiled. In a measured step each compiled program is waited for, so that its
time is its own. Nothing overlaps then, and a step takes longer than usual.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from fr3e_jax.programs.program import Program
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.runs.run_directory import RunDirectory

WARM_UP_STEPS = 2
"""First steps of a process, not profiled: they compile."""
_BETWEEN = "between stages"


class Profiler:
    """After the warm-up: measure ``steps`` steps of a run, then trace one.

    Args:
      steps: number of measured steps; 0: the profiler does nothing.
      run_dir: its ``profile/`` receives ``table.txt`` and the trace.
      ledger: its stages are the table's stages.
    """

    def __init__(self, steps: int, run_dir: RunDirectory, ledger: TokenLedger):
        self.steps, self.directory = steps, run_dir.profile
        self._ledger, self._seen = ledger, 0
        self._measured: list[int] = []
        self._stages: defaultdict[str, float] = defaultdict(float)  # seconds
        self._programs: defaultdict[tuple[str, str], float] = defaultdict(float)  # seconds by stage and name
        self._calls: Counter[tuple[str, str]] = Counter()

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Enter around each step of the loop."""
        self._seen += 1
        measured = self._seen - WARM_UP_STEPS
        if not self.steps or measured < 1 or measured > self.steps + 1:
            yield
        elif measured <= self.steps:
            with Program.observed(self._timed):
                yield from self._measure(step)
            self.directory.mkdir(exist_ok=True)
            (self.directory / "table.txt").write_text("\n".join(self.lines()) + "\n")  # also if the run ends early
        else:
            with _trace(self.directory), jax.profiler.StepTraceAnnotation("step", step_num=step):
                yield

    def _measure(self, step: int) -> Iterator[None]:
        before, start = dict(self._ledger.seconds), time.perf_counter()
        yield
        elapsed = time.perf_counter() - start
        for stage, seconds in self._ledger.seconds.items():
            spent = seconds - before.get(stage, 0.0)
            self._stages[stage] += spent
            elapsed -= spent
        self._stages[_BETWEEN] += elapsed
        self._measured.append(step)

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        key, start = (self._ledger.current_stage or _BETWEEN, name), time.perf_counter()
        result = jax.block_until_ready(call())
        self._programs[key] += time.perf_counter() - start
        self._calls[key] += 1
        return result

    def lines(self) -> list[str]:
        """The table, in times per step: each stage, its programs, and the rest on the host."""
        count, total = len(self._measured), sum(self._stages.values())

        def line(label: str, seconds: float, calls: int = 0) -> str:
            shown = f"{calls / count:.1f}" if calls else ""
            return f"{label:<34}{shown:>8}{1000 * seconds / count:>11.1f}{seconds / total:>8.1%}"

        span = " to ".join(map(str, dict.fromkeys((self._measured[0], self._measured[-1]))))
        lines = [
            f"where the time of step{'s' * (count > 1)} {span} went ({total / count:.3f} s a step; each program was "
            "waited for)",
            f"{'':<34}{'calls':>8}{'ms':>11}{'share':>8}   a step",
        ]
        for stage, seconds in self._stages.items():
            longest_first = sorted(self._programs.items(), key=lambda entry: -entry[1])
            programs = {key[1]: spent for key, spent in longest_first if key[0] == stage}
            if seconds:
                lines += [line(stage, seconds)]
                lines += [line(f"  {name}", spent, self._calls[stage, name]) for name, spent in programs.items()]
                lines += [line("  host, transfers, waiting", seconds - sum(programs.values()))] * bool(programs)
        return [*lines, line("programs together", sum(self._programs.values()))]

    def report(self) -> list[str]:
        """Lines for a person: the table, and how to look at the trace; empty without a measured step."""
        if not self._measured:
            return []
        lines = [*self.lines(), f"the same table in a file: {self.directory / 'table.txt'}"]
        traces = sorted(self.directory.glob("**/*.trace.json.gz"))
        return lines + [f"trace of one step: open {trace} at https://ui.perfetto.dev" for trace in traces[-1:]]


@contextlib.contextmanager
def _trace(directory: Path) -> Iterator[None]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own calls would fill most of the file and take most of the time
    jax.profiler.start_trace(directory, profiler_options=options)
    try:
        yield
    finally:
        jax.profiler.stop_trace()
