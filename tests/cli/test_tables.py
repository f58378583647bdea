"""Texts and lists of the command fit the terminal."""

import re

import pytest

from fr3e_jax.cli import main
from fr3e_jax.cli.tables import fitted


def test_long_lines_break_at_words_below_their_second_column(monkeypatch):
    text = "head\n  name    the first words and then some more words\n  no column here but many words that go on"
    assert fitted(text) == text  # no terminal: lines stay whole, for grep
    monkeypatch.setenv("COLUMNS", "30")
    assert fitted(text).split("\n") == [
        "head",
        "  name    the first words and",
        "          then some more words",
        "  no column here but many",
        "  words that go on",
    ]
    assert fitted("example: fr3e train demo.yaml --resume").split("\n")[1] == "    --resume"
    far = "  a_name_that_ends_far_right  the words of its text"
    assert fitted(far).split("\n")[1] == "      the words of its text"  # not at the place where names begin
    address = "see /a/path/that/has/no/place/to/break/and/is/long/enough"
    assert fitted(address).split("\n")[-1].strip() == address.removeprefix("see ")


@pytest.mark.parametrize("command", [["--help"], ["methods"], ["metrics"], ["train", "--help"], ["help", "explore"]])
def test_lists_and_helps_fit_80_columns(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    too_wide = [line for line in lines if len(line) > 80 and len(line.split()) > 1]
    assert len(lines) > 5 and too_wide == []


def test_every_purpose_in_the_help_begins_in_one_column(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.partition("example:")[0].splitlines()
    starts = {len(re.match(r"  \w+ +|  +", line)[0]) for line in lines[4:] if line}
    assert starts == {len("  intervene  ")}
