r"""Answers that are equal to the gold answer because they repeat the question: ``(1+i)^4`` where it is to be evaluated.

Equality alone rewards such an answer, and a policy finds that out. An answer is a restatement if an operation is left
to be carried out in it, the question writes this operation, and the gold answer does not. The texts do not matter, but
the trees (``written_forms``): the order of summands and a factor 1 make no other answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property, lru_cache

from fr3e_jax.answers.exact_numbers import rational
from fr3e_jax.answers.expression_shapes import is_name, is_open
from fr3e_jax.answers.expression_tree import Node, symbols
from fr3e_jax.answers.limits import Contradiction, Refused, Unreadable
from fr3e_jax.answers.question_formulas import Formulas, difference_form, is_numeral, notation, question_formulas
from fr3e_jax.answers.reader import keys, read
from fr3e_jax.answers.requested_forms import lacks_form
from fr3e_jax.answers.units import is_thing, unit, words_of
from fr3e_jax.answers.written_forms import (
    OPERATIONS,
    has_operation,
    has_root_below,
    is_plain,
    leaves,
    size,
    undone,
    written_form,
)
from fr3e_jax.verdict import Verdict

RESTATED = Verdict(0.0, "restated")
OTHER_FORM = Verdict(0.0, "other_form")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2}|\\(?:text|mbox|mathrm|mathbf)")
_SIMPLE = re.compile(r"\s*\$?[-+]?[\d,]+\$?\s*|\s*\$?[A-Za-z]\$?\s*")  # an integer or a letter restates nothing
_CONVERSION = re.compile(
    r"\b(?:decimal|fraction|percent(?:age)?|mixed number|scientific notation|standard form|interval notation)\b"
)
_SENTENCE_END = re.compile(r"[.?!]\s")  # "express your answer as a fraction" asks for no conversion
_NO_ROOT_BELOW = re.compile(r"\b(?:rationali[sz]|simplif|rational denominator|radical form)", re.IGNORECASE)
_SEVERAL = ("bracket", "set", "list", "matrix", "union")


def earned(verdict: Verdict, question: str, golds: tuple[str, ...], answer: str) -> Verdict:
    """The verdict, unless it is "right" and the answer restates the question or lacks the form that it asks for."""
    if verdict.outcome != "right" or _SIMPLE.fullmatch(answer):
        return verdict
    if _WORDS.search(answer) and not any(_literally(gold, answer) for gold in golds):
        if _says_other_words(question, golds, answer):
            return Verdict(0.0, "wrong")
    if not question or (len(golds) == 1 and _literally(golds[0], answer)):
        return verdict
    if restates(question, golds, answer):
        return RESTATED
    return OTHER_FORM if has_other_form(question, golds, answer) else verdict


def _says_other_words(question: str, golds: tuple[str, ...], answer: str) -> bool:
    """Return whether a word after a number names no unit or thing, and neither the question nor a gold answer has it.

    ``24 squared`` is not 24, and ``24 wombats`` is where the question is about wombats.
    """
    try:
        quantities = [node for node in read(answer).walk() if node.head == "measured"]
    except (Refused, Unreadable, ArithmeticError, RecursionError):
        return False
    unknown = set().union(*(unit(node.value).unknown for node in quantities))
    return bool(unknown) and not all(is_thing(word, words_of(" ".join((question, *golds)))) for word in unknown)


def restates(question: str, golds: tuple[str, ...], answer: str) -> bool:
    """Return whether an answer that equals a gold one is an unevaluated formula of the question, and no gold one is.

    An answer or gold answer that is not in the grammar restates nothing. Pure, and linear in the texts.
    """
    try:
        tree = read(answer)
        restatement = _restatement(question, golds)
        return bool(_readable(golds)) and (restatement.of(tree) or restatement.keeps_unit(tree))
    except (Refused, Unreadable, Contradiction, ArithmeticError):
        return False
    except RecursionError:
        return True  # no honest answer is nested so deeply


def has_other_form(question: str, golds: tuple[str, ...], answer: str) -> bool:
    """Return whether the question asks for a form ("factor", "expand", ...) that an equal answer lacks."""
    try:
        answers = _stated(read(answer))
        gold_values = [value for gold in _readable(golds) for value in _stated(gold)[-1:]]
        return bool(gold_values) and all(lacks_form(question, gold, value) for gold in gold_values for value in answers)
    except (Refused, Unreadable):
        return False
    except RecursionError:
        return True


@lru_cache(maxsize=256)
def _readable(golds: tuple[str, ...]) -> tuple[Node, ...]:
    """The trees of those gold answers that are in the grammar; an answer equals the others only literally."""
    trees = []
    for gold in golds:
        try:
            trees.append(read(gold))
        except (Refused, Unreadable):
            continue
    return tuple(trees)


def _literally(gold: str, answer: str) -> bool:
    try:
        return gold.strip() == answer.strip() or keys(gold) == keys(answer)
    except (Refused, Unreadable):
        return False


@lru_cache(maxsize=256)
def _restatement(question: str, golds: tuple[str, ...]) -> _Restatement:
    return _Restatement(question, _readable(golds))


class _Restatement:
    """A question with its gold answers, read once for all answers to it."""

    def __init__(self, question: str, golds: tuple[Node, ...]):
        self.question = question
        self.converts = any(
            _CONVERSION.search(sentence) for sentence in _SENTENCE_END.split(question) if "answer" not in sentence
        )
        self.no_root_below = _NO_ROOT_BELOW.search(question) is not None
        self.gold_forms: set[str] = set()
        self.gold_folded: dict[str, int] = {}
        self.gold_notations: set[str] = set()
        self.rounded = any(node.head == "decimal" for gold in golds for node in gold.walk())
        self.gold_units = {unit(node.value) for gold in golds for node in gold.walk() if node.head == "measured"}
        self.closed = not any(map(symbols, golds))
        self.solved = all(map(_is_solved, golds))
        stated = [value for gold in golds for value in _stated(gold)]
        worked = [value for value in stated if not self._restates(value)]  # the gold answer may begin with the question
        for value in worked or stated:
            written_form(value, forms=self.gold_forms)
        self.gold_folded = {written_form(value, folded=True): size(value) for value in worked or stated}
        self.gold_notations = {notation(node) for value in worked or stated for node in value.walk()}
        self.gold_forms.update(written_form(gold) for gold in golds if gold.head == "relation")

    @cached_property
    def formulas(self) -> Formulas:
        return question_formulas(self.question)

    def of(self, answer: Node) -> bool:
        """Return whether an answer restates as it is written, or without identities such as ``|3|`` for 3."""
        if self._restated(answer):
            return True
        if not self.formulas.written:
            return False
        bare = undone(answer, self.formulas.written | self.gold_forms)
        return bare != answer and self._restated(bare)

    def _restated(self, answer: Node) -> bool:
        """Return whether an equation or every value of an answer restates; ``(1+i)^4 = -4`` has the value, too."""
        if symbols(answer) and answer.head == "relation" and len(answer.args) == 2 and self._restates(answer):
            return True
        return all(self._restates(value) or self._keeps_notation(value) for value in self._parts(answer))

    def keeps_unit(self, answer: Node) -> bool:
        """Return whether an answer has a number of the question in a unit that no gold answer has: 3 feet."""
        if not self.gold_units:
            return False
        numbers = {Fraction(number.replace(",", "")) for number in _NUMBER.findall(self.question)}
        return any(
            unit(node.value) not in self.gold_units and rational(node.args[0]) in numbers
            for node in answer.walk()
            if node.head == "measured" and node.args[0].head in ("number", "decimal")
        )

    def _parts(self, answer: Node) -> tuple[Node, ...]:
        """The values that an answer states; both sides of an equation unless an equation is wanted."""
        if answer.head == "relation" and set(answer.value) == {"="} and self.solved:
            return tuple(side for side in answer.args if not is_name(side)) or (answer,)
        return _stated(answer)

    def _restates(self, node: Node) -> bool:
        if node.head in _SEVERAL:
            return any(map(self._restates, node.args))
        if not symbols(node):
            return self._leaves_numbers(node) or self._repeats_padded(node)
        if self.closed and self._leaves_numbers(node):  # 2^3+x-x for 8
            return True
        return self._repeats(node) or self._repeats_padded(node) or self._repeats_relation(node)

    def _leaves_numbers(self, node: Node) -> bool:
        """Return whether an operation with numbers, which the question writes, is left anywhere in the answer."""
        if next(self._left(node), None) is None:
            return False
        forms: set[str] = set()
        written_form(node, forms=forms)
        repeated = (forms & self.formulas.written) - self.gold_forms
        return bool(repeated) and any(written_form(operation) in repeated for operation in self._left(node))

    def _left(self, node: Node) -> Iterator[Node]:
        """The operations with numbers in a tree that are left to be carried out."""
        stack = [node]
        while stack:
            child = stack.pop()
            if self._is_plain(child):
                continue
            if child.head in OPERATIONS and not symbols(child):
                yield child
            stack.extend(child.args)

    def _is_plain(self, node: Node) -> bool:
        return is_plain(node, self.rounded) and not (self.no_root_below and has_root_below(node))

    def _keeps_notation(self, answer: Node) -> bool:
        """Return whether a number or set of the question is to be written in another notation and is not."""
        if not self.converts:
            return False
        if answer.head in ("relation", "builder"):
            return notation(answer) not in self.gold_notations and written_form(answer) in self.formulas.written
        numerals = {(notation(child), written_form(child)) for child in answer.walk() if is_numeral(child)}
        return any(kind not in self.gold_notations for kind, _ in numerals & self.formulas.numerals)

    def _repeats(self, node: Node) -> bool:
        form = written_form(node)
        return has_operation(node) and form in self.formulas.written and form not in self.gold_forms

    def _repeats_padded(self, node: Node) -> bool:
        """Return whether the answer is a formula of the question with ``+1-1``, ``\\frac22`` and the like added."""
        if not has_operation(node) or written_form(node) in self.gold_forms:
            return False
        form = written_form(node, folded=True)
        repeated = self.formulas.folded.get(form)
        return repeated is not None and repeated <= leaves(node) and size(node) > self.gold_folded.get(form, 0)

    def _repeats_relation(self, node: Node) -> bool:
        """Return whether a relation of the question is to be solved, and the answer only moves its terms."""
        if node.head != "relation" or len(node.args) != 2 or not self.solved or _is_solved(node):
            return False
        form = difference_form(node)
        return form in self.formulas.differences and written_form(node) not in self.gold_forms


def _stated(node: Node) -> tuple[Node, ...]:
    """The values that an answer states: 9 for ``x = 9``, all sides of ``3^2 = 9``, or the answer as it is."""
    if node.head != "relation" or not set(node.value) <= {"=", "~"}:
        return (node,)
    if is_name(node.args[0]):
        return node.args[1:]
    return (node,) if any(map(is_open, node.args)) else node.args


def _is_solved(node: Node) -> bool:
    """Return whether an answer is no relation, or one of a name to an expression without it."""
    if node.head != "relation" or len(node.args) != 2:
        return True
    left, right = node.args
    return any(is_name(name) and not symbols(name) & symbols(side) for name, side in ((left, right), (right, left)))
