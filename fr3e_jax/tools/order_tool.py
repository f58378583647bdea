"""A tool for the embedded task *Order* that gives the next line, for recipes and tests without another program."""

from __future__ import annotations

from fr3e_jax.rewards.order_verifier import is_valid, reduce_at

MODULUS = 10


def next_line(expression: str) -> str:
    """The expression after one reduction in the order of precedence: ``3+4*2`` gives ``3+8``, and ``7`` gives ``7``.

    Raises:
      ValueError: the text is not an expression of single digits.
    """
    digits, operators = expression[::2], expression[1::2]
    if len(digits) != len(operators) + 1 or not digits.isdecimal() or set(operators) - set("+-*"):
        raise ValueError(f"{expression!r} is not an expression")
    for position in range(1, len(expression), 2):
        if is_valid(expression, position):
            return reduce_at(expression, position, MODULUS)
    return expression
