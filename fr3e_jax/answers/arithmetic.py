"""Comparison of two values: exactly with rational numbers, or, in a worker, numerically to many digits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Protocol

from fr3e_jax.answers.exact_numbers import NotRational, rational, same_factors
from fr3e_jax.answers.expression_tree import Node
from fr3e_jax.answers.limits import Refused

ROUNDED_DIGITS = 6  # significant digits that a decimal needs to stand for a number that has no finite decimal

_LARGEST = 60  # nodes of an expression that the main process evaluates
_COSTLY = {"sum", "product", "factorial", "function"}


class NeedsWorker(Exception):
    """Rational arithmetic cannot tell; a worker process can."""


class Arithmetic(Protocol):
    """The questions about values that comparing answers asks."""

    def equal(self, left: Node, right: Node) -> bool:
        """Return whether two expressions are equal, for all values of their variables."""

    def proportional(self, left: Node, right: Node, positive: bool) -> bool:
        """Return whether one is a constant, not zero (or positive), times the other."""

    def real(self, node: Node) -> Any:
        """The value as a real number that can be compared."""


class ExactArithmetic:
    """Rational numbers, quick and safe enough for the main process; other values raise ``NeedsWorker``."""

    def equal(self, left: Node, right: Node) -> bool:
        try:
            a, b = self.real(left), self.real(right)
        except Refused:
            if same_factors(left, right):
                return True
            raise
        return a == b or rounds_to(left, a, right, b)

    def proportional(self, left: Node, right: Node, positive: bool) -> bool:
        raise NeedsWorker

    def real(self, node: Node) -> Fraction:
        if node.head not in ("number", "decimal"):
            if len(node.walk()) > _LARGEST or node.has(*_COSTLY):
                raise NeedsWorker
        try:
            return rational(node)
        except NotRational:
            raise NeedsWorker from None


def rounds_to(left: Node, left_value: Fraction, right: Node, right_value: Fraction) -> bool:
    """Return whether one side, a decimal of six or more digits, is the other one rounded, which has no finite decimal.

    Cutting off counts as rounding. A number with a finite decimal has to be equal exactly.
    """
    if as_decimal(left) is None:
        left, left_value, right, right_value = right, right_value, left, left_value
    return as_decimal(right) is None and not terminates(right_value) and rounds(left, left_value, right_value)


def rounds(node: Node, decimal: Fraction, exact: Fraction) -> bool:
    """Return whether ``node``, six or more digits with the value ``decimal``, is ``exact`` rounded or cut off."""
    places, significant = as_decimal(node) or (0, 0)
    if significant < ROUNDED_DIGITS or (decimal > 0) != (exact > 0):
        return False
    last_place = Fraction(1, 10**places)
    difference = abs(exact) - abs(decimal)
    return abs(difference) * 2 <= last_place or 0 <= difference < last_place


def as_decimal(node: Node) -> tuple[int, int] | None:
    """(digits after the point, significant digits) of a decimal as written; None for anything else."""
    while node.head == "negate":
        node = node.args[0]
    return node.value[1:] if node.head == "decimal" else None


def last_place(node: Node) -> Fraction:
    """The value of the last digit that a number states: 1/100 for 3.14, 100 for 3900; 0 for what is no such number."""
    if node.head == "negate":
        return last_place(node.args[0])
    if node.head == "multiply" and len(node.args) == 2 and node.args[1].head == "power":
        return last_place(node.args[0]) * abs(rational(node.args[1]))  # 1.1\\times 10^{12}
    if node.head == "decimal":
        return Fraction(1, 10 ** node.value[1])
    if not node.is_integer:
        return Fraction(0)
    digits = str(int(node.value))
    return Fraction(10 ** (len(digits) - len(digits.rstrip("0"))))


def terminates(value: Fraction) -> bool:
    """Return whether a fraction has a finite decimal."""
    rest = value.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    return rest == 1
