"""Tables of findings on the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rich.table import Table

from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.studies.analysis.figure import Finding, TextTable


def print_tables(findings: Iterable[Finding], console: TableConsole | None = None) -> None:
    """Print those that are tables, each with its note; a wide one of few rows has a line for each of its columns."""
    console = console or TableConsole()
    wide = console.options.update_width(10_000)
    for table in findings:
        if not isinstance(table, TextTable):
            continue
        shown = _drawn(table)
        if len(table.cells) + 1 < len(table.columns) and console.measure(shown, options=wide).maximum > console.width:
            head, *lines = zip(table.columns, *table.cells, strict=True)
            shown = _drawn(dataclasses.replace(table, columns=[_text(cell) for cell in head], cells=lines))
        console.print(shown)
        if table.note:
            console.print(table.note, soft_wrap=not console.is_terminal)
        console.print()


def _drawn(table: TextTable) -> Table:
    """The table with columns of numbers to the right."""
    shown = Table(title=table.title, title_justify="left")
    for index, heading in enumerate(table.columns):
        left = index == 0 or table.name in ("settings", "runs") or heading in ("metric", "by seed", "seeds")
        shown.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=index == 0)
    for row in table.cells:
        shown.add_row(*map(_text, row))
    return shown


def _text(cell: str | int | float | None) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
