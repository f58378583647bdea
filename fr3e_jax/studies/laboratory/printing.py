"""Tables of findings on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.studies.analysis.figure import Finding, TextTable


def print_tables(findings: Sequence[Finding]) -> None:
    """Print the tables with a line for each of their columns, as they have more of these than rows; then the note."""
    console = TableConsole()
    for finding in findings:
        if isinstance(finding, TextTable):
            console.print(finding.title)
            head, *lines = zip(*[finding.columns, *finding.cells], strict=True)
            table = Table(*map(str, head), box=None)
            for column in table.columns[1:]:
                column.justify = "right"
            for line in lines:
                table.add_row(*map(_cell, line))
            console.print(table)
    console.print(findings[0].note, soft_wrap=True)


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
