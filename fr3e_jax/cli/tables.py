"""The console on which the command prints tables: cells are text, neither markup nor escape sequences."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Container, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fr3e_jax.visible_text import terminal, visible

COMMANDS = ("usage:", "example:")  # lines that go on further right
FILE_WIDTH = 160  # characters of a table that is written to a file


class TableConsole(Console):
    """Standard output for tables, rules and lines that hold text from recipes, datasets and files."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else FILE_WIDTH
        super().__init__(file=terminal(sys.stdout), width=width, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Leave the error to ``main`` of the command, which has an exit code for it."""
        raise

    def render_str(self, text: str, **options: Any) -> Text:
        """The text as it is. Every string that `rich` prints or measures passes here."""
        options.update(markup=False, emoji=False)
        return super().render_str(visible(text, self.encoding), **options)


def fitted(text: str) -> str:
    """The text with lines that fit the terminal, broken at words; as it is where the output is no terminal.

    A broken line goes on below its second column, which at least two spaces set off; where this begins in the right
    half, and in a command, it goes on four places further right than it begins.
    """
    width = shutil.get_terminal_size((0, 0)).columns
    return "\n".join(_broken(line, width) for line in text.split("\n")) if width else text


def _broken(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    lead = len(line) - len(line.lstrip(" "))
    columns = re.match(r" *\S.*?  +(?=\S)", line)
    column = columns.end() if columns else width
    indent = column if column <= width // 2 else lead + 4 * (line.startswith(COMMANDS) or columns is not None)
    pieces = textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(pieces)


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Container[str] | None = None) -> Table:
    """A table without lines. Columns named in ``left`` are flush left; by default the first one is."""
    table = Table(box=None)
    for name in head:
        is_left = name == head[0] if left is None else name in left
        table.add_column(name, justify="left" if is_left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
