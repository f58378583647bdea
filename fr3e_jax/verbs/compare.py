"""``fr3e compare``: the arguments, the tables on the terminal, and the files."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from fr3e_jax.cli.arguments import number, on_this_machine, write_output
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.tables import TableConsole, fitted
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.studies.analysis.comparison import Comparison, compare
from fr3e_jax.studies.analysis.comparison_content import CSV_COLUMNS, as_json, as_markdown, csv_rows
from fr3e_jax.studies.analysis.comparison_tables import tables
from fr3e_jax.studies.analysis.run_groups import Collection, collect
from fr3e_jax.studies.printing import print_tables
from fr3e_jax.visible_text import visible

STDOUT = "-"
finite = number(float, "a number; expected a score such as 0.6", math.isfinite)


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "paths",
        metavar="RUN|SWEEP_DIR",
        nargs="+",
        help="run directories, sweeps, or folders whose sub-folders are runs",
    )
    parser.add_argument(
        "--by",
        metavar="KEYS",
        default="",
        help="group by these settings alone, comma-separated (default: all settings)",
    )
    parser.add_argument(
        "--label", metavar="TEXT", action="append", default=[], help="name of a group; once for each group, in order"
    )
    parser.add_argument(
        "--baseline",
        metavar="LABEL",
        default="first",
        help="group that the others are measured against (default: first)",
    )
    parser.add_argument(
        "--metric",
        metavar="NAMES",
        default="",
        help="the main metric, and after commas others to show, such as greedy,clip/high (default: held-out avg@k)",
    )
    parser.add_argument(
        "--reach", metavar="SCORE", type=finite, help="score to reach (default: the baseline's final score)"
    )
    parser.add_argument(
        "--page", type=on_this_machine, metavar="FILE", help="write a page with curves: HTML that opens from disk"
    )
    parser.add_argument(
        "--markdown", type=on_this_machine, metavar="FILE", help="write the tables as Markdown; - for standard output"
    )
    parser.add_argument(
        "--csv", type=on_this_machine, metavar="FILE", help="write all points and results as CSV; - for standard output"
    )
    parser.add_argument(
        "--json", type=on_this_machine, metavar="FILE", help="write all results as JSON; - for standard output"
    )


def _collected(paths: Sequence[str]) -> Collection:
    with as_config_error():
        return collect(paths)


def run(arguments: argparse.Namespace) -> int:
    """Write the files that are asked for, and print the tables, unless a file goes to standard output.

    Raises:
      ConfigError: the runs cannot be compared, an option does not fit them, or a file cannot be written.
    """
    if arguments.page == STDOUT:
        raise ConfigError("--page - is no file; expected one to open in a browser, such as --page comparison.html")
    makers = {arguments.json: _json, arguments.csv: _csv, arguments.markdown: as_markdown}
    named = [path for path in (arguments.json, arguments.csv, arguments.markdown, arguments.page) if path]
    if twice := next((path for path in named if named.count(path) > 1), ""):
        raise ConfigError(
            f"{twice} is named twice; expected another FILE for each of --json, --csv, --markdown and --page"
        )
    comparison = compare(
        _collected(arguments.paths),
        by=[key for key in arguments.by.split(",") if key],
        labels=arguments.label,
        baseline=arguments.baseline,
        metrics=[name for name in arguments.metric.split(",") if name],
        reach=arguments.reach,
    )
    files = {path: content_of(comparison) for path, content_of in makers.items() if path}
    if arguments.page:
        from fr3e_jax.studies.reports.comparison_page import comparison_page

        files[arguments.page] = comparison_page(comparison, Path(arguments.page).expanduser().parent)
    printed = files.pop(STDOUT, "")
    for path, content in files.items():
        write_output(path, content)
    if printed:
        sys.stdout.write(printed)
    else:
        print_comparison(comparison)
    for path in files:
        print(f"wrote {path}", file=sys.stderr if printed else sys.stdout)
    return 0


def print_comparison(comparison: Comparison) -> None:
    """The flags first, then the tables."""
    console = TableConsole()
    if comparison.flags:
        console.print("BEFORE YOU COMPARE", style="bold yellow")
        for flag in comparison.flags:
            console.print(fitted(f"  ! {flag.kind}: {flag.text}"), style="yellow", soft_wrap=True)
        console.print()
    print_tables(tables(comparison), console)


def _json(comparison: Comparison) -> str:
    return json.dumps(as_json(comparison), indent=2, allow_nan=False) + "\n"


def _csv(comparison: Comparison) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in csv_rows(comparison):
        writer.writerow({name: visible(value) if isinstance(value, str) else value for name, value in row.items()})
    return stream.getvalue()


VERB = Verb("fr3e compare runs/sweep-demo-20250101-120000 --page comparison.html", declare, run, recipe=False)
