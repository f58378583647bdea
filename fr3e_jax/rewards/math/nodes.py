"""Builders of small trees, for the rules of the grammar."""

from __future__ import annotations

from fractions import Fraction

from fr3e_jax.rewards.math.expression_tree import Node
from fr3e_jax.rewards.math.limits import Unreadable


def with_sign(sign: str | None, operand: Node) -> Node:
    """The operand after a sign; None: after no sign."""
    if sign == "-":
        return Node("negate", (operand,))
    return operand if sign in ("+", None) else Node("plusminus", (operand,), sign)


def listed(node: Node) -> tuple[Node, ...]:
    """The items of a list; any other tree is one item."""
    return node.args if node.head == "list" else (node,)


def product(left: Node, right: Node) -> Node:
    return Node("multiply", (*left.args, right) if left.head == "multiply" else (left, right))


def mixed(left: Node, right: Node) -> Node | None:
    """The sum for a mixed number such as ``3\\frac{1}{2}``; None for products such as ``3\\frac{x}{2}``."""
    if right.head in ("measured", "percent", "degrees"):  # 2\\frac{1}{2} \\text{ cups}
        inner = mixed(left, right.args[0])
        return inner and Node(right.head, (inner,), right.value)
    if left.head != "number" or left.value.denominator != 1 or right.head != "divide" or right.value != "\\frac":
        return None
    if all(part.head == "number" and part.value.denominator == 1 for part in right.args):
        return Node("add", (left, right))
    return None


def mixed_number(whole: str, upper: str, lower: str) -> Node:
    if not (whole + upper + lower).isdigit():
        raise Unreadable("two numbers stand side by side")
    return Node("add", (literal_node(whole), Node("divide", (literal_node(upper), literal_node(lower)))))


def literal_node(digits: str) -> Node:
    if "." not in digits:
        return Node("number", (), Fraction(int(digits)))
    whole, _, decimals = digits.partition(".")
    significant = len((whole + decimals).lstrip("0"))
    return Node("decimal", (), (Fraction(int(whole + decimals), 10 ** len(decimals)), len(decimals), significant))


def three_digits(text: str) -> bool:
    return len(text.partition(".")[0]) == 3 and text[0] != "."


def integer_value(node: Node) -> int:
    sign, node = (-1, node.args[0]) if node.head == "negate" else (1, node)
    if node.head != "number" or node.value.denominator != 1:
        raise Unreadable("an exponent is not a number")
    return sign * int(node.value)


def decorated(base: Node, mark: str) -> Node:
    if base.head not in ("symbol", "constant"):
        raise Unreadable("a prime stands after something that is not a name")
    return Node("symbol", (), base.value + mark)


def with_index(body: Node, index: str) -> Node:
    """The body of a sum over ``i`` with ``i`` as the index instead of the imaginary unit."""
    if body.head == "constant" and body.value == index:
        return Node("symbol", (), index)
    return Node(body.head, tuple(with_index(part, index) for part in body.args), body.value) if body.args else body
