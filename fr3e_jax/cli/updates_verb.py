"""``fr3e updates``: its arguments, its tables and its files."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from fr3e_jax.cli.analyse_verb import write_findings
from fr3e_jax.cli.eval_verb import steps
from fr3e_jax.cli.local_paths import on_this_machine
from fr3e_jax.cli.parsers import positive
from fr3e_jax.cli.run_selection import run_to_read, saved_config
from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.studies.analysis.figure import TextTable


def declare_updates(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("run", metavar="RUN", help="directory of a training run with two checkpoints or more")
    parser.add_argument(
        "--steps", metavar="A,B", type=steps, default=(), help="the checkpoints (default: the newest two)"
    )
    parser.add_argument("--responses", type=positive, default=128, metavar="N", help="rollouts to score (default 128)")
    parser.add_argument(
        "--categories", type=on_this_machine, metavar="FILE", help="patterns of token categories, in place of ours"
    )
    parser.add_argument("--out", type=on_this_machine, metavar="DIR", help="folder of the files (default RUN/analysis)")


def show_updates(arguments: argparse.Namespace) -> int:
    """Score the rollouts under both checkpoints, write the findings, print their tables; return the exit code."""
    run_dir = run_to_read(arguments.run, checkpoints=True)
    config = load_config(saved_config(run_dir), training=False)
    from fr3e_jax.studies.laboratory.updates import token_updates

    categories = Path(arguments.categories).expanduser() if arguments.categories else None
    found = token_updates(config, run_dir, arguments.steps, arguments.responses, categories)
    place = Path(arguments.out).expanduser() if arguments.out else run_dir / "analysis"
    try:
        write_findings(found, place)
    except OSError as error:
        raise ConfigError(f"cannot write into {place} ({error}); choose another folder: --out DIR") from error
    console = TableConsole()
    for one in found:
        if isinstance(one, TextTable):
            console.print(one.title)
            _print(console, one)
    console.print(found[0].note, soft_wrap=True)
    print(f"all findings as JSON and CSV: {place}")
    return 0


def _print(console: TableConsole, finding: TextTable) -> None:
    """The table, turned: it has more columns than rows."""
    head, *body = zip(*[finding.columns, *finding.cells], strict=True)
    table = Table(*map(str, head), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in body:
        table.add_row(
            *("" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in line)
        )
    console.print(table)
