"""Control characters from files, models and users' code are shown on the terminal, never obeyed."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.table import Table

from fr3e_jax.cli.entry import main
from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.visible_text import VisibleStream, visible

ESCAPES = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\rfr3e: done", "\x08\x08", "\u202eabc", "\u2066x\u2069", "\ud800"]


@pytest.mark.parametrize("text", ESCAPES)
def test_active_characters_become_their_json_spelling(text):
    shown = visible(text)
    assert shown.isprintable() and json.loads(f'"{shown}"') == text


def test_ordinary_text_lines_and_tabs_are_unchanged():
    text = "a\tb\nx² ≤ ½, 中文, עברית, 👩‍👩‍👧 \\u001b [bold]"
    assert visible(text) == text


def test_characters_that_the_stream_lacks_are_spelled():
    raw = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    VisibleStream(raw).write("x² 😀")
    raw.flush()
    assert raw.buffer.getvalue() == rb"x\u00b2 \ud83d\ude00"


def test_command_shows_the_escapes_of_an_error(capsys):
    assert main(["\x1b[2Jtrain"]) == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and r"got \u001b[2Jtrain" in shown


def test_command_shows_the_escapes_of_a_traceback():
    code = "from fr3e_jax.cli.entry import main; main(['--version']); raise RuntimeError('\\x1b[2J\\u202ereward')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert "\x1b" not in shown and r"\u001b[2J\u202ereward" in shown


@pytest.mark.parametrize("cell", ["[perplexity]", "/data/[/x]", "[bold]x[/bold]", ":smile:", "[link=http://a]b[/link]"])
def test_cells_are_not_read_as_markup(cell, capsys):
    table = Table("value", title=cell)
    table.add_row(cell)
    TableConsole().print(table)
    assert capsys.readouterr().out.count(cell) == 2


@pytest.mark.parametrize("text", ESCAPES)
def test_cells_titles_rules_and_lines_show_escapes(text, capsys):
    table = Table("value", title=text)
    table.add_row(text)
    console = TableConsole()
    console.print(table)
    console.print(text)
    console.rule(text)
    assert capsys.readouterr().out.count(visible(text)) == 4


def test_a_stream_is_guarded_once(capsys):
    main(["--version"])
    guarded = sys.stdout
    main(["--version"])
    assert isinstance(guarded, VisibleStream) and sys.stdout is guarded
