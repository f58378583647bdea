"""A calculator: exact arithmetic on numbers and nothing else.

Calls have the form of GSM8K's annotations (Cobbe et al. 2021, arXiv:2110.14168): the policy writes ``<<48/2=``, the
calculator appends ``24>>``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from fr3e_jax.tools.answer import Answer

MOST_CHARACTERS = 200
MOST_BITS = 512  # of a numerator or denominator
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculate(expression: str) -> Answer:
    """The value of an expression of decimal numbers: ``3*(2+4)`` gives ``18``, ``1/8`` gives ``0.125``.

    It knows ``+ - * / // % **`` and parentheses, and ignores commas and dollar signs. Whole results are written in
    full, others with ten significant digits. Any other text, and any value out of bounds, gives ``error``.
    """
    text = expression.replace(",", "").replace("$", "").strip()
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError("too long")
        return Answer(_written(_value(ast.parse(text, mode="eval").body)), "answered")
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return Answer("error", "error")


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _bounded(_power(left, right))
        if type(node.op) in _OPERATORS:
            return _bounded(Fraction(_OPERATORS[type(node.op)](left, right)))
    raise ValueError(f"{type(node).__name__} is no arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * size > MOST_BITS:
        raise ValueError("no small whole exponent")
    return base ** int(exponent)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise ValueError("too large")
    return value


def _written(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"
