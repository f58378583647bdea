"""What a sweep shows: a live table on a terminal, else a line for each run that ends, and a table at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.studies.analysis.run_overview import run_overview
from fr3e_jax.verbs.runs import progress_cells
from fr3e_jax.verbs.sweep_runs import RECIPE, Run, Watch, as_overrides

LOOK_SECONDS = 1.0  # between two looks at the files of the runs
OTHER_LINES = 8  # of the terminal: what the table has beside its rows


class Display(Watch):
    """Context manager: shows how the runs of a sweep go.

    On a terminal a live table has their progress, read from their files; elsewhere each end is a line.

    Args:
      runs: all runs of the sweep, also those that an earlier process has finished.
      shown: the settings that tell them apart.
      jobs: runs at the same time.
    """

    def __init__(self, runs: Sequence[Run], shown: Sequence[str], jobs: int) -> None:
        self._runs, self._shown, self._jobs = runs, shown, jobs
        self._running: list[Run] = []
        self._looked = float("-inf")
        self._console = TableConsole()
        # Without the thread of `rich`: the table changes when the sweep looks.
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if sys.stdout.isatty() else None

    def __enter__(self) -> Display:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.__exit__(kind, error, traceback)

    def begun(self, run: Run) -> None:
        self._running.append(run)

    def ended(self, run: Run) -> None:
        self._running.remove(run)
        varied = {key: value for key, value in run.settings.items() if key in self._shown}
        settings = " ".join([*([Path(varied[RECIPE]).stem] if RECIPE in varied else []), *as_overrides(varied)])
        where = "" if run.exit_code == 0 else f"; see {run.log}"
        number = f"[{self._runs.index(run) + 1}/{len(self._runs)}]"
        self._console.print(f"{number} {settings}: exit {run.exit_code} after {run.seconds} s{where}", soft_wrap=True)

    def look(self, waiting: int) -> None:
        if self._live and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._live.update(self.table(waiting, self._console.height - OTHER_LINES), refresh=True)

    def table(self, waiting: int, most_rows: int) -> RenderableType:
        """The runs with their progress, only those under way if all are more than ``most_rows``; below, the counts."""
        counts = Counter(
            "finished" if run.exit_code == 0 else "failed" for run in self._runs if run.exit_code is not None
        )
        counts |= {"running": len(self._running), "waiting": waiting}
        rows = self._runs if len(self._runs) <= most_rows else self._running
        table = Table("#", *self._shown, "state", "step", "tokens", "held-out", "before", "after")
        for run in rows:
            table.add_row(str(self._runs.index(run)), *(run.settings[key] for key in self._shown), *self._cells(run))
        line = ", ".join(
            f"{counts[state]} {state}" for state in ("finished", "failed", "running", "waiting") if counts[state]
        )
        ended = [run.seconds for run in self._runs if run.seconds is not None and run.exit_code == 0]
        if ended and waiting:
            left = sum(ended) / len(ended) * waiting / self._jobs
            line += f"; about {timedelta(seconds=round(left))} for those that wait"
        return Group(table, Text(line))

    def _cells(self, run: Run) -> list[str]:
        if run not in self._running and run.exit_code is None:
            return ["waiting"]
        return progress_cells(run_overview(Path(run.run_dir)))


def print_table(runs: Sequence[Run], keys: Sequence[str]) -> None:
    """Print a row per run: settings, exit code, held-out accuracy before and after, sampled tokens, seconds."""
    metric = average_name(runs)
    table = Table("#", *keys, "exit", f"{metric} before", f"{metric} after", "sampled tokens", "seconds")
    for index, run in enumerate(runs):
        summary = run.summary or {}
        cells = [
            "not run" if run.exit_code is None else str(run.exit_code),
            _cell((summary.get("before") or {}).get(metric)),
            _cell((summary.get("after") or {}).get(metric)),
            _cell(summary.get("sampled_tokens")),
            _cell(run.seconds),
        ]
        table.add_row(str(index), *(run.settings[key] for key in keys), *cells)
    TableConsole().print(table)


def average_name(runs: Sequence[Run]) -> str:
    """The name of the accuracy in the summaries that ranks checkpoints (`loop.evaluate.best_metric`)."""
    scores = [(run.summary or {}).get("after") or (run.summary or {}).get("before") or {} for run in runs]
    names = [name for score in scores for name in score]
    averages = [name for name in names if name == "avg"] or [name for name in names if name.startswith("avg@")]
    return next(iter(averages), "greedy" if "greedy" in names else "avg@k")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if value < 1 else f"{value:.1f}"
