"""``fr3e analyse``: the papers' analyses of stored runs, each as JSON and CSV, and a table of their main numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fr3e_jax.cli.arguments import on_this_machine
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import run_to_read
from fr3e_jax.cli.tables import TableConsole, text_table
from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.catalogue import ANALYSES, LeftOut, analyse
from fr3e_jax.studies.analysis.figure import Figure, Finding, HeatMap
from fr3e_jax.studies.analysis.finding_content import finding_content, write_findings
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.visible_text import visible

SHOWN_SERIES = 2  # in the table; the files have all


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("runs", metavar="RUN", nargs="*", help="run directory; several are laid over each other")
    parser.add_argument(
        "--out", type=on_this_machine, metavar="DIR", help="folder of the files (default RUN/analysis of the first run)"
    )
    parser.add_argument("--only", metavar="NAME,...", default="", help="only these analyses; --list has the names")
    parser.add_argument("--list", action="store_true", help="list the analyses with source and needed data, then stop")
    parser.add_argument("--seed", type=int, default=0, help="of draws, bootstraps and votes (default 0)")
    parser.add_argument("--json", action="store_true", help="print all findings as JSON in place of the table")


def run(arguments: argparse.Namespace) -> int:
    """Analyse the runs, write the files, print a table and return the exit code.

    Raises:
      ConfigError: there is no such run or analysis, a file is damaged, or no analysis has its data.
    """
    if arguments.list:
        _list()
        return 0
    if not arguments.runs:
        raise ConfigError("found no run; expected run directories: fr3e analyse runs/demo-20250101-120000")
    runs = [StoredRun.open(run_to_read(run)) for run in arguments.runs]
    findings, left_out = analyse(
        runs,
        seed=arguments.seed,
        only=[name.strip() for name in arguments.only.split(",") if name.strip()],
    )
    if not findings:
        reasons = "; ".join(dict.fromkeys(f"{missing.name}: {missing.reason}" for missing in left_out))
        raise ConfigError(f"found nothing to analyse in {', '.join(arguments.runs)} ({reasons})")
    folder = Path(arguments.out).expanduser() if arguments.out else _folder(runs)
    write_findings(findings, folder)
    if arguments.json:
        print(json.dumps([json.loads(finding_content(finding)) for finding in findings], indent=2))
        for missing in left_out:
            print(visible(f"left out: {missing.name} of {missing.run}: {missing.reason}"), file=sys.stderr)
    else:
        _print(findings, left_out, folder)
    return 0


def headline(finding: Finding) -> str:
    """The main numbers of a finding in a line: first and last value of its first series, or its largest bars."""
    if isinstance(finding, Figure):
        shown = [_ends(finding, i) for i in range(min(SHOWN_SERIES, len(finding.series)))]
        more = len(finding.series) - SHOWN_SERIES
        return "; ".join([*shown, f"{more} more"] if more > 0 else shown)
    if isinstance(finding, HeatMap):
        means = [_column_mean(finding, i) for i in (0, -1)]
        return f"mean {means[0]} at {finding.columns[0]}, {means[1]} at {finding.columns[-1]}"
    cells = ", ".join(_short(cell) for cell in finding.cells[0]) if finding.cells else "empty"
    return f"{len(finding.cells)} rows; first: {cells}"


def _ends(figure: Figure, i: int) -> str:
    series = figure.series[i]
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
    if not points:
        return f"{series.name}: no value"
    if figure.kind == "bars":
        x, y = max(points, key=lambda point: point[1])
        return f"{series.name}: most {_short(y)} ({_short(x)})"
    (first, before), (last, after) = points[0], points[-1]
    return f"{series.name}: {_short(before)} at {_short(first)}, {_short(after)} at {_short(last)}"


def _column_mean(finding: HeatMap, column: int) -> str:
    values = [line[column] for line in finding.values if line[column] is not None]
    return _short(sum(values) / len(values)) if values else "none"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _folder(runs: Sequence[StoredRun]) -> Path:
    others = [run.name for run in runs[1:]]
    folder = runs[0].directory.path / "analysis"
    return folder / ("with_" + "_".join(others)) if others else folder


def _list() -> None:
    head, rows = ("analysis", "needs", "source"), ([a.name, a.need, a.source] for a in ANALYSES.values())
    TableConsole().print(text_table(head, rows, left=head))


def _print(findings: Sequence[Finding], left_out: Sequence[LeftOut], folder: Path) -> None:
    console, head = TableConsole(), ("finding", "numbers")
    console.print(text_table(head, ([finding.name, headline(finding)] for finding in findings), left=head))
    for missing in left_out:
        console.print(f"left out: {missing.name} of {missing.run}: {missing.reason}", soft_wrap=True)
    console.print(f"JSON and CSV of each: {folder}", soft_wrap=True)


VERB = Verb("fr3e analyse runs/fr3e-20250101-120000 runs/grpo-20250101-120000", declare, run, recipe=False)
