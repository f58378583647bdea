"""The tree that an answer is read into: one small frozen class, as all code about trees dispatches on ``head``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fr3e_jax.answers.limits import Unreadable


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its kind ``head``, its parts ``args``, and the rest in ``value``.

    | head | args | value |
    |---|---|---|
    | number | | ``Fraction`` |
    | decimal | | (``Fraction``, digits after the point, significant digits) |
    | symbol, constant, text, set_name | | name |
    | based | | (digits, base), as written |
    | add, multiply, divide, power, negate, factorial, modulo, ratio, plusminus | operands | sign of a plusminus |
    | root | radicand, index | |
    | percent, degrees | the number | |
    | measured | the quantity | the unit as written |
    | function, apply | arguments | name |
    | sum, product | body, lower, upper | index |
    | integral, derivative | body, bounds | variable |
    | limit | body, point | variable, and the side it is approached from (``+-``: both) |
    | matrix | entries, row by row | number of columns |
    | bracket | items | the two brackets, such as ``[)`` |
    | set, list, union, intersection, difference | items | |
    | builder | element, condition | |
    | relation | operands | operators, one fewer |
    """

    head: str
    args: tuple[Node, ...] = ()
    value: Any = None

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.args)

    def mapped(self, change: Callable[[Node], Node]) -> Node:
        """This node with each of its parts changed."""
        return Node(self.head, tuple(map(change, self.args)), self.value) if self.args else self


def number(value: int | Fraction) -> Node:
    return Node("number", (), Fraction(value))


def replaced(node: Node, old: Node, new: Node) -> Node:
    """The tree with ``new`` wherever ``old`` was."""
    if node == old:
        return new
    return Node(node.head, tuple(replaced(part, old, new) for part in node.args), node.value)


def symbols(node: Node) -> set[str]:
    """Names of the free variables; indices of sums and products are bound."""
    if node.head == "symbol":
        return {node.value}
    found = set().union(*(symbols(part) for part in node.args)) if node.args else set()
    if node.head == "apply":
        return found | {node.value}
    if node.head == "derivative" or (node.head == "integral" and len(node.args) == 1):
        return found | {bound_variable(node)}
    bound = node.head in ("sum", "product", "limit", "integral")
    return found - {bound_variable(node)} if bound else found


def bound_variable(node: Node) -> str:
    """The variable of a sum, product, integral, limit or derivative."""
    return node.value[0] if node.head == "limit" else node.value


# ---- builders of small trees, for the rules of the grammar


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
