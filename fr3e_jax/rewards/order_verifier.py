"""Arithmetic and verifiers of the task *Order*: rewrite ``3+4*2-5>`` as ``3+8-5>1-5>6``, one reduction per line.

An expression is a string of single digits joined by ``+``, ``-`` and ``*``: operands at even positions, operators at
odd ones. Arithmetic is modulo m <= 10, so that every intermediate result is a single digit again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fr3e_jax.problem import Problem

LINE_END = ">"


def reduce_at(expression: str, position: int, modulus: int) -> str:
    """The expression with the operator at ``position`` (odd) and its operands replaced by their result mod m."""
    left, operator, right = expression[position - 1 : position + 2]
    a, b = int(left), int(right)
    result = {"+": a + b, "-": a - b, "*": a * b}[operator] % modulus
    return f"{expression[: position - 1]}{result}{expression[position + 2 :]}"


def is_valid(expression: str, position: int) -> bool:
    """Return whether reducing the operator at ``position`` keeps the value of the expression, whatever its digits.

    A ``*`` may always be reduced. A ``+`` or ``-`` may be reduced if neither neighbouring operator is ``*`` (it binds
    tighter) and the one to its left is not ``-`` (x-a+b is (x-a)+b, not x-(a+b)); a ``+`` to its left is harmless
    (x+a-b = x+(a-b)). Every expression has such an operator: a ``*``, or else its first.
    """
    left, right = expression[max(position - 2, 0)], expression[position + 2 : position + 3]
    return expression[position] == "*" or ("*" not in (left, right) and left != "-")


def valid_reductions(expression: str, modulus: int) -> set[str]:
    """All lines that may follow ``expression``."""
    positions = range(1, len(expression), 2)
    return {reduce_at(expression, i, modulus) for i in positions if is_valid(expression, i)}


def evaluate(expression: str, modulus: int) -> str:
    """The value of the expression, ``*`` before ``+`` and ``-``, left to right: one digit, 0 <= value < modulus."""
    while len(expression) > 1:
        position = next(i for i in range(1, len(expression), 2) if is_valid(expression, i))
        expression = reduce_at(expression, position, modulus)
    return expression


@dataclass(frozen=True)
class OrderVerifier:
    """The verifier of *Order*: reward 1 or 0; a response without its stop token is wrong.

    Under both rules the response has as many lines as the expression has operators, the last of them the right digit.
    The rule ``answer`` asks for no more. ``strict`` also wants every line to be one valid reduction (``is_valid``) of
    the line before it.
    """

    rule: Literal["answer", "strict"]
    modulus: int

    def __call__(self, problem: Problem, response: str, finished: bool) -> float:
        expression = problem.prompt.removesuffix(LINE_END)
        lines = response.split(LINE_END)
        right = finished and len(lines) == len(expression) // 2 and lines[-1] == problem.gold
        if right and self.rule == "strict":
            steps = pairwise([expression, *lines])
            right = all(line in valid_reductions(previous, self.modulus) for previous, line in steps)
        return float(right)
