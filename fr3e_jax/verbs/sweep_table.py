"""The output of a sweep: a line for each run that ends, and a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fr3e_jax.cli.tables import TableConsole, text_table
from fr3e_jax.studies.analysis.run_overview import score_name
from fr3e_jax.verbs.sweep_runs import RECIPE, Run, as_overrides


def print_end(run: Run, runs: Sequence[Run], shown: Sequence[str]) -> None:
    """Print a line about a run that has ended; ``shown``: the settings that tell the runs apart."""
    varied = {key: value for key, value in run.settings.items() if key in shown}
    settings = " ".join([*([Path(varied[RECIPE]).stem] if RECIPE in varied else []), *as_overrides(varied)])
    stopped = ", stopped" if run.exit_code == 0 and not run.is_finished else ""
    log = "" if run.is_finished else f"{stopped}; see {run.log}"
    position = f"[{runs.index(run) + 1}/{len(runs)}]"
    TableConsole().print(f"{position} {settings}: exit {run.exit_code} after {run.seconds} s{log}", soft_wrap=True)


def print_table(runs: Sequence[Run], keys: Sequence[str]) -> None:
    """Print a row per run: settings, exit code, held-out accuracy before and after, sampled tokens, seconds."""
    summaries = [run.summary or {} for run in runs]
    scores = (score_name(summary.get("after") or summary.get("before") or {}) for summary in summaries)
    metric = next(filter(None, scores), "avg@k")
    head, rows = ("#", *keys, "exit", f"{metric} before", f"{metric} after", "sampled tokens", "seconds"), []
    for index, (run, summary) in enumerate(zip(runs, summaries, strict=True)):
        cells = [
            "not run" if run.exit_code is None else str(run.exit_code),
            _cell((summary.get("before") or {}).get(metric)),
            _cell((summary.get("after") or {}).get(metric)),
            _cell(summary.get("sampled_tokens")),
            _cell(run.seconds),
        ]
        rows.append([str(index), *(run.settings[key] for key in keys), *cells])
    TableConsole().print(text_table(head, rows, left=("#", *keys)))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if value < 1 else f"{value:.1f}"
