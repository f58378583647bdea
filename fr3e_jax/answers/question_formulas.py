"""The formulas of a question, and the forms of all their sub-expressions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from fr3e_jax.answers.expression_shapes import difference
from fr3e_jax.answers.expression_tree import Node, symbols
from fr3e_jax.answers.limits import ANSWER_LENGTH, Refused, Unreadable
from fr3e_jax.answers.reader import read_tokens
from fr3e_jax.answers.tokens import tokenise
from fr3e_jax.answers.vocabulary import FUNCTION_NAMES
from fr3e_jax.answers.written_forms import has_operation, is_plain, leaves, written_form

_QUESTION_LENGTH = 20_000  # characters of a question in which formulas are looked for
_DELIMITER = re.compile(r"(?<!\\)\$\$?|\\[()\[\]]")
_BREAK = re.compile(
    r"\\\\|&|\\q?quad(?![a-z])|\\(?:begin|end|text|mbox|mathrm|textbf)\s*\{[^{}]*\}|[=<>,;:\n?]"
    r"|\\(?:leq?|geq?|lt|gt|ne|neq|to|approx|equiv|in|cdots|ldots|dots)(?![a-zA-Z])"
)
_MATHEMATICAL = re.compile(
    rf"(?:\d|[^\w\s\\]|\\[a-zA-Z]+|\\[^a-zA-Z\s]|_|(?<![A-Za-z])(?:{'|'.join(FUNCTION_NAMES)}|sqrt|log|pi|mod|[A-Za-z])(?![A-Za-z]))+"
)
_OPERATOR = re.compile(r"[-+*/^!=<>×÷√²³|(\\]")
_NUMERALS = ("repeating", "decimal", "divide", "add", "multiply", "percent", "power")
_PUNCTUATION = " \t\n.,;:?\"'"


@dataclass(frozen=True)
class Formulas:
    """The expressions and relations that a question writes.

    Attributes:
      written: the forms of all expressions and sub-expressions.
      folded: the folded forms of whole formulas and of the sides of relations, if they have something to carry out;
        each with the leaves of the first formula of this form.
      differences: the folded forms of one side minus the other of each relation.
      numerals: notation and form of each number, integers apart.
    """

    written: set[str] = field(default_factory=set)
    folded: dict[str, Counter[Node]] = field(default_factory=dict)
    differences: set[str] = field(default_factory=set)
    numerals: set[tuple[str, str]] = field(default_factory=set)


def question_formulas(question: str) -> Formulas:
    """The formulas between dollars, ``\\\\(...\\\\)`` and ``\\\\[...\\\\]``, and those in the text; linear time."""
    formulas = Formulas()
    for piece in _pieces(question[:_QUESTION_LENGTH]):
        for tree in _trees(piece):
            try:
                _add(formulas, tree)
            except RecursionError:
                continue
    return formulas


def _pieces(question: str) -> Iterator[str]:
    position, inside = 0, False
    for match in _DELIMITER.finditer(question):
        piece, position = question[position : match.start()], match.end()
        yield from (piece,) if inside else _in_prose(piece)
        inside = not inside if match[0][0] == "$" else match[0] in ("\\(", "\\[")
    yield from _in_prose(question[position:])


def _in_prose(text: str) -> Iterator[str]:
    """Formulas that are written without dollars: runs of words of digits, operators, single letters and functions."""
    run: list[str] = []
    for word in [*text.split(), "."]:
        if word != "." and _MATHEMATICAL.fullmatch(word):
            run.append(word)
            if word[-1] not in ".;?":
                continue
        while run and run[0] in ("a", "A", "I"):
            run.pop(0)
        formula = " ".join(run)
        if _OPERATOR.search(formula) and re.search(r"\w", formula):
            yield formula
        run = []


def _trees(formula: str) -> Iterator[Node]:
    """The tree of a formula; those of its parts if the whole is not in the grammar or has words in it."""
    formula = formula.rstrip(_PUNCTUATION).lstrip()
    tree = _read(formula)
    if tree is not None:
        yield tree
        if "\\text" not in formula:
            return
    for piece in _BREAK.split(formula):
        tree = _read(piece.rstrip(_PUNCTUATION).lstrip())
        if tree is not None:
            yield tree


def _read(text: str) -> Node | None:
    if not text or len(text) > ANSWER_LENGTH:
        return None
    try:
        return read_tokens(tokenise(text))
    except (Refused, Unreadable, RecursionError, ArithmeticError):
        return None


def _add(formulas: Formulas, tree: Node) -> None:
    written_form(tree, forms=formulas.written)
    for node in tree.walk():
        if node.head == "relation":
            formulas.differences.update(map(difference_form, _pairs(node)))
        if is_numeral(node):
            formulas.numerals.add((notation(node), written_form(node)))
    for side in (tree, *(tree.args if tree.head in ("relation", "list") else ())):
        if has_operation(side):
            formulas.folded.setdefault(written_form(side, folded=True), leaves(side))


def _pairs(relation: Node) -> Iterator[Node]:
    for index, operator in enumerate(relation.value):
        yield Node("relation", relation.args[index : index + 2], (operator,))


def difference_form(relation: Node) -> str:
    """The folded form of the larger side of a relation of two minus the other side."""
    return written_form(difference(relation), folded=True)


def is_numeral(node: Node) -> bool:
    """Return whether a tree is a number, and no integer, with nothing left to be carried out."""
    return notation(node) in _NUMERALS and not symbols(node) and is_plain(node)


def notation(node: Node) -> str:
    """The head of a tree, or "repeating" for a decimal with a period, whose head is that of an integer."""
    return "repeating" if node.head == "number" and node.value.denominator != 1 else node.head
