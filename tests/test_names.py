"""Names that a stranger reads once: few empty words, no named lambdas, no name for two classes or two modules."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "fr3e_jax"
EMPTY = set("one own found known part kept held place whole number given asked wanted told".split())
MOST_PER_1000_LINES = 5
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def empty_words(source: str) -> list[tuple[int, str]]:
    """(line, word) of each identifier that says nothing: a noun of the field or of the code's subject says more."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(t.start[0], t.string) for t in tokens if t.type == tokenize.NAME and t.string in EMPTY]


def vague_docstrings(source: str) -> list[str]:
    """First lines of docstrings that begin with a relative pronoun instead of a noun or an imperative."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, nodes)]
    return [text.splitlines()[0] for text in texts if text.startswith(("What ", "Who ", "That which "))]


def repeated(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_few_identifiers_are_empty_words():
    words = {path: empty_words(source) for path, source in SOURCES.items()}
    lines = sum(source.count("\n") for source in SOURCES.values())
    worst = sorted(words, key=lambda path: -len(words[path]))[:5]
    shown = "\n".join(f"{path.relative_to(PACKAGE)}: {words[path][:10]}" for path in worst)
    assert 1000 * sum(map(len, words.values())) / lines <= MOST_PER_1000_LINES, shown


def test_docstrings_begin_with_a_noun_or_an_imperative():
    assert [(str(path), line) for path, source in SOURCES.items() for line in vague_docstrings(source)] == []


def test_no_name_has_two_classes():
    classes = [name for source in SOURCES.values() for name in re.findall(r"^ *class (\w+)", source, re.MULTILINE)]
    assert len(classes) > 100 and repeated(classes) == []


def test_no_name_has_two_modules():
    """A verb's file has the verb's name, so `verbs/` may repeat that of the room behind it."""
    rooms = [path for path in SOURCES if not path.stem.startswith("__") and path.parent.name != "verbs"]
    assert repeated([path.stem for path in rooms]) == []


def test_the_checks_find_what_they_look_for():
    assert empty_words("whole = f(part=1)\n# part\n") == [(1, "whole"), (1, "part")]
    assert vague_docstrings('def f():\n    """What it is."""\n') == ["What it is."]
    assert repeated(["Run", "Plan", "Run"]) == ["Run"]
