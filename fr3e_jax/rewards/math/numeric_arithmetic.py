"""The arithmetic of the worker: rational numbers exactly, everything else numerically."""

from __future__ import annotations

from fractions import Fraction

import mpmath
from mpmath import mp

from fr3e_jax.rewards.math import numeric
from fr3e_jax.rewards.math.arithmetic import as_decimal, rounds, rounds_to
from fr3e_jax.rewards.math.exact_numbers import NotRational, rational
from fr3e_jax.rewards.math.expression_tree import Node, replaced, symbols

_IMAGINARY = Node("symbol", (), "I")
_INFINITY = Node("constant", (), "infinity")
_DIGITS = 60
_SCALE = 10**50


class NumericArithmetic:
    """Expressions that have a numerical value; others raise ``Unreadable``."""

    def equal(self, left: Node, right: Node) -> bool:
        exact = _rational(left), _rational(right)
        if None not in exact:
            return exact[0] == exact[1] or rounds_to(left, exact[0], right, exact[1])
        if opaque(left) != left and opaque(right) != right and numeric.equal(opaque(left), opaque(right)):
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
        exact = _rational(node)
        if exact is not None:
            return exact
        with mp.workdps(_DIGITS):
            return Fraction(int(mpmath.nint(numeric.real_value(node) * _SCALE)), _SCALE)


def opaque(node: Node) -> Node:
    """The tree with each sum or product to infinity, or to ``n``, as an unknown function of its terms and bounds.

    If two such trees are equal, so are the sums, and nothing had to be summed.
    """
    if node.head in ("sum", "product") and any(bound.head != "number" for bound in node.args[1:]):
        parts = tuple(replaced(part, _INFINITY, Node("symbol", (), "infinity")) for part in node.args)
        return Node("apply", parts, f"{node.head} over {node.value}")
    return node.mapped(opaque)


def _rational(node: Node) -> Fraction | None:
    try:
        return rational(node)
    except NotRational:
        return None


def _has(node: Node, name: str) -> bool:
    """Whether a logarithm without a base is written so in a tree."""
    return any(part.head == "function" and part.value == name and len(part.args) == 1 for part in node.walk())


def _natural(node: Node) -> Node:
    natural = node.head == "function" and node.value == "log" and len(node.args) == 1
    return Node(node.head, tuple(map(_natural, node.args)), "ln" if natural else node.value)


def _imaginary(node: Node) -> Node:
    """The tree with ``I`` as the imaginary unit."""
    return replaced(node, _IMAGINARY, Node("constant", (), "i"))
