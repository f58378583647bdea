"""Verdicts of a worker process: on rational numbers exactly, on expressions numerically, on calculus by sympy.

This module imports sympy and mpmath (a second or so), never jax. sympy may hang or exhaust the memory; the pool's
deadline and memory limit end it.
"""

from __future__ import annotations

from fractions import Fraction

import mpmath
from mpmath import mp

from fr3e_jax.answers import numeric
from fr3e_jax.answers.arithmetic import as_decimal, rounds, rounds_to
from fr3e_jax.answers.equality import same
from fr3e_jax.answers.exact_numbers import NotRational, Undefined, rational, same_factors, substituted
from fr3e_jax.answers.expression_tree import INFINITY, Node, number_node, replaced, symbols
from fr3e_jax.answers.items import single_values
from fr3e_jax.answers.limits import Contradiction, Refused, Unreadable
from fr3e_jax.answers.quantity import Quantity
from fr3e_jax.answers.quick import REFUSED, RIGHT, WRONG, verdict_on_pair
from fr3e_jax.answers.reader import readings
from fr3e_jax.answers.units import conversion
from fr3e_jax.verdict import Verdict

_STRING_ONLY = Verdict(0.0, "string_only")
_IMAGINARY = Node("symbol", (), "I")
_DIGITS = 60
_SCALE = 10**50
_CLOSE = Fraction(1, 10**40)


def verdict(golds: tuple[str, ...], answer: str, absolute: float, relative: float) -> Verdict:
    """The verdict on an answer; see ``judge`` in the package."""
    verdicts = [_judged(gold, answer) for gold in golds]
    if RIGHT in verdicts:
        return RIGHT
    if (absolute or relative) and any(is_close(gold, answer, absolute, relative) for gold in golds):
        return RIGHT
    return verdicts[0]


def _judged(gold: str, answer: str) -> Verdict:
    quick = verdict_on_pair(gold, answer)
    if quick is not None:
        return quick
    try:
        pairs, arithmetic = list(readings(gold, answer)), NumericArithmetic()
        return RIGHT if any(same(left, right, arithmetic) for left, right in pairs) else WRONG
    except (Refused, RecursionError):
        return REFUSED
    except (Contradiction, Undefined):
        return WRONG
    except (Unreadable, ArithmeticError):  # of a tree, too, which may have no meaning after all
        return _STRING_ONLY


def is_close(gold: str, answer: str, absolute: float, relative: float) -> bool:
    """Return whether ``answer`` has as many numbers as ``gold``, in any order, each within a tolerance of the gold one.

    ``relative`` applies only to gold numbers that were rounded: decimals and powers of ten.
    """
    try:
        return any(_close(*pair, absolute, relative) for pair in readings(gold, answer))
    except (Refused, Unreadable, Contradiction, ArithmeticError, RecursionError):
        return False


def _close(gold: Node, answer: Node, absolute: float, relative: float) -> bool:
    golds, answers = single_values(gold), single_values(answer)
    if len(golds) != len(answers) or any(symbols(side.core) for side in (*golds, *answers)):
        return False
    if any(conversion(a.unit, b.unit) != 1 or a.percent != b.percent for a, b in zip(golds, answers, strict=True)):
        return False
    sides = [
        sorted(((NumericArithmetic().real(q.core), q) for q in side), key=lambda pair: pair[0])
        for side in (golds, answers)
    ]
    return all(
        abs(value - target) <= max(Fraction(absolute), Fraction(relative) * abs(target) if _rounded(quantity) else 0)
        for (target, quantity), (value, _) in zip(*sides, strict=True)
    )


def _rounded(quantity: Quantity) -> bool:
    """Return whether a gold number is a decimal, or a number times a power of ten."""
    return any(
        node.head == "decimal" or (node.head == "power" and node.args[0] == number_node(10))
        for node in quantity.core.walk()
    )


class NumericArithmetic:
    """Expressions that have a numerical value; others raise ``Unreadable``."""

    def __init__(self):
        self._values: list[tuple[Node, Fraction]] = []

    def equal(self, left: Node, right: Node) -> bool:
        try:
            exact = _rational(left), _rational(right)
        except Refused:
            if same_factors(left, right):
                return True
            raise
        if None not in exact:
            return exact[0] == exact[1] or rounds_to(left, exact[0], right, exact[1])
        if opaque(left) != left and opaque(right) != right:
            pairs = (left, right), (_peeled(left), right), (left, _peeled(right))
            if any(numeric.equal(opaque(a), opaque(b)) for a, b in pairs):
                return True
        if numeric.equal(left, right):
            return True
        if _has(left, "ln") != _has(right, "ln") and _has(left, "log") != _has(right, "log"):
            return self.equal(_natural(left), _natural(right))  # log against ln may mean the natural logarithm
        if ("I" in symbols(left)) != ("I" in symbols(right)) and _IMAGINARY not in (left, right):
            return self.equal(_imaginary(left), _imaginary(right))  # sympy and Mathematica write the imaginary unit so
        if symbols(left) or symbols(right) or (as_decimal(left) is None) == (as_decimal(right) is None):
            return False
        decimal, other = (left, right) if as_decimal(left) else (right, left)
        return rounds(decimal, self.real(decimal), self.real(other))

    def proportional(self, left: Node, right: Node, positive: bool) -> bool:
        return numeric.proportional(opaque(left), opaque(right), positive)

    def real(self, node: Node) -> Fraction:
        """A fraction near the value: equal numbers have the same one, others that are close have another one."""
        value = _rational(node)
        if value is None:
            with mp.workdps(_DIGITS):
                value = Fraction(int(mpmath.nint(numeric.real_value(node) * _SCALE)), _SCALE)
        for other, close in self._values:
            if abs(value - close) < _CLOSE and other != node:
                if numeric.equal(node, other):
                    return close
                value = close + (-_CLOSE if numeric.is_less(node, other) else _CLOSE)
        self._values.append((node, value))
        return value


def opaque(node: Node) -> Node:
    """The tree with each sum or product to infinity, or to ``n``, as an unknown function of its terms and bounds.

    If two such trees are equal, so are the sums, and nothing had to be summed.
    """
    if node.head in ("sum", "product") and any(bound.head != "number" for bound in node.args[1:]):
        body, lower, upper = node.args
        index: Node = Node("symbol", (), "index")
        if upper == INFINITY:  # from 0 on
            index, lower = Node("add", (index, lower)), number_node(0)
        parts = substituted(body, node.value, index), lower, upper
        return Node(
            "apply", tuple(replaced(part, INFINITY, Node("symbol", (), "infinity")) for part in parts), node.head
        )
    return node.mapped(opaque)


def _peeled(node: Node) -> Node:
    """The tree with the first term of each infinite sum before it."""
    if node.head == "sum" and node.args[2] == INFINITY:
        body, lower, upper = node.args
        rest = Node("sum", (body, Node("add", (lower, number_node(1))), upper), node.value)
        return Node("add", (substituted(body, node.value, lower), rest))
    return node.mapped(_peeled)


def _rational(node: Node) -> Fraction | None:
    try:
        return rational(node)
    except NotRational:
        return None


def _has(node: Node, name: str) -> bool:
    """Return whether a logarithm without a base is written so in a tree."""
    return any(call.head == "function" and call.value == name and len(call.args) == 1 for call in node.walk())


def _natural(node: Node) -> Node:
    natural = node.head == "function" and node.value == "log" and len(node.args) == 1
    return Node(node.head, tuple(map(_natural, node.args)), "ln" if natural else node.value)


def _imaginary(node: Node) -> Node:
    """The tree with ``I`` as the imaginary unit."""
    return replaced(node, _IMAGINARY, Node("constant", (), "i"))
