"""The output of a sweep: a line for each run that ends, and a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.verbs.sweep_runs import RECIPE, Run, as_overrides


def print_end(run: Run, runs: Sequence[Run], shown: Sequence[str]) -> None:
    """Print a line about a run that has ended; ``shown``: the settings that tell the runs apart."""
    varied = {key: value for key, value in run.settings.items() if key in shown}
    settings = " ".join([*([Path(varied[RECIPE]).stem] if RECIPE in varied else []), *as_overrides(varied)])
    log = "" if run.exit_code == 0 else f"; see {run.log}"
    position = f"[{runs.index(run) + 1}/{len(runs)}]"
    TableConsole().print(f"{position} {settings}: exit {run.exit_code} after {run.seconds} s{log}", soft_wrap=True)


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
    """The name of the accuracy in the summaries that ranks checkpoints (`evaluation_sets.best_metric`)."""
    scores = [(run.summary or {}).get("after") or (run.summary or {}).get("before") or {} for run in runs]
    names = [name for score in scores for name in score]
    averages = [name for name in names if name == "avg"] or [name for name in names if name.startswith("avg@")]
    return next(iter(averages), "greedy" if "greedy" in names else "avg@k")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if value < 1 else f"{value:.1f}"
