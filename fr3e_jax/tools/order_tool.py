"""A tool for the embedded task *Order*: the line that comes next, for recipes and tests without another program."""

from __future__ import annotations

from fr3e_jax.rewards.order_verifier import is_valid, reduce_at

MODULUS = 10


def next_line(expression: str) -> str:
    """The expression after one reduction in the order of precedence: ``3+4*2`` gives ``3+8``, one digit itself.

    Raises:
      ValueError: it is no expression of single digits.
    """
    digits, operators = expression[::2], expression[1::2]
    if len(digits) != len(operators) + 1 or not digits.isdecimal() or set(operators) - set("+-*"):
        raise ValueError(f"{expression!r} is no expression")
    for position in range(1, len(expression), 2):
        if is_valid(expression, position):
            return reduce_at(expression, position, MODULUS)
    return expression
