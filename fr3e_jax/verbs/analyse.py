"""``fr3e analyse``: the papers' analyses of stored runs, each as JSON and CSV, and a table of their main numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fr3e_jax.cli.arguments import on_this_machine
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import run_to_read
from fr3e_jax.cli.tables import TableConsole, text_table
from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.catalogue import ANALYSES, LeftOut, analyse
from fr3e_jax.studies.analysis.figure import Figure, Finding, HeatMap, TextTable
from fr3e_jax.studies.analysis.finding_content import finding_content, write_findings
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.visible_text import visible

SHOWN_SERIES = 4  # of a figure, in the table; the files have all


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


def main_numbers(finding: Finding) -> Iterator[tuple[str, str, str]]:
    """Rows (name, first value, last value) of a finding: its series, or a heat map's columns; of bars the highest."""
    if isinstance(finding, Figure):
        for series in finding.series[:SHOWN_SERIES]:
            points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
            if finding.kind == "bars":
                yield series.name, "", _at(*max(points, key=lambda point: point[1])) if points else "no value"
            else:
                yield series.name, *(_at(*points[i]) if points else "no value" for i in (0, -1))
        if (more := len(finding.series) - SHOWN_SERIES) > 0:
            yield f"{more} more in the files", "", ""
    elif isinstance(finding, HeatMap):
        yield "mean", *(_at(finding.columns[i], _column_mean(finding, i)) for i in (0, -1))
    elif isinstance(finding, TextTable):
        yield f"{len(finding.cells)} rows", *(_cells(finding, i) for i in (0, -1))


def _at(x: object, y: object) -> str:
    return f"{_short(y)} at {_short(x)}"


def _cells(finding: TextTable, row: int) -> str:
    return ", ".join(_short(cell) for cell in finding.cells[row]) if finding.cells else ""


def _column_mean(finding: HeatMap, column: int) -> float | None:
    values = [value for line in finding.values if (value := line[column]) is not None]
    return sum(values) / len(values) if values else None


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "none" if value is None else str(value)


def _folder(runs: Sequence[StoredRun]) -> Path:
    others = [run.name for run in runs[1:]]
    folder = runs[0].directory.path / "analysis"
    return folder / ("with_" + "_".join(others)) if others else folder


def _list() -> None:
    head, rows = ("analysis", "needs", "source"), ([a.name, a.need, a.source] for a in ANALYSES.values())
    TableConsole().print(text_table(head, rows, left=head))


def _print(findings: Sequence[Finding], left_out: Sequence[LeftOut], folder: Path) -> None:
    console, head = TableConsole(), ("finding", "first", "last or highest")
    rows = [
        row
        for finding in findings
        for row in ((finding.name, "", ""), *((f"  {name}", *ends) for name, *ends in main_numbers(finding)))
    ]
    console.print(text_table(head, rows, left=head))
    for missing in left_out:
        console.print(f"left out: {missing.name} of {missing.run}: {missing.reason}", soft_wrap=True)
    console.print(f"JSON and CSV of each: {folder}", soft_wrap=True)


VERB = Verb("fr3e analyse runs/fr3e-20250101-120000 runs/grpo-20250101-120000", declare, run, recipe=False)
