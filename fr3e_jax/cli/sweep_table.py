"""The table at the end of a sweep."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fr3e_jax.cli.sweep import Run

FILE_WIDTH = 160  # of a table that is written to a file


def print_table(runs: Sequence[Run], keys: Sequence[str]) -> None:
    """A row per run: settings, exit code, held-out avg@k before and after, sampled tokens, seconds."""
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
    Console(width=None if sys.stdout.isatty() else FILE_WIDTH).print(table)


def average_name(runs: Sequence[Run]) -> str:
    """The avg@k that the summaries have; its k is a setting."""
    scores = [(run.summary or {}).get("after") or (run.summary or {}).get("before") or {} for run in runs]
    return next((name for score in scores for name in score if name.startswith("avg@")), "avg@k")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if value < 1 else f"{value:.1f}"
