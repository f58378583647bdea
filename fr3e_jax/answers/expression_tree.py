"""The tree that an answer is read into: one small frozen class, as all code about trees dispatches on ``head``."""

from __future__ import annotations

from collections.abc import Callable
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
    | builder, case | element or value, condition | |
    | cases | the cases | |
    | relation | operands | operators, one fewer |
    """

    head: str
    args: tuple[Node, ...] = ()
    value: Any = None

    def walk(self) -> list[Node]:
        """This node and all below it."""
        nodes, stack = [], [self]
        while stack:
            node = stack.pop()
            nodes.append(node)
            stack.extend(node.args)
        return nodes

    def has(self, *heads: str) -> bool:
        """Return whether this node or one below it has one of these heads."""
        return not {node.head for node in self.walk()}.isdisjoint(heads)

    @property
    def is_integer(self) -> bool:
        """Return whether this is an integer as written: no sign, no decimal point."""
        return self.head == "number" and self.value.denominator == 1

    def mapped(self, change: Callable[[Node], Node]) -> Node:
        """This node with each of its parts changed."""
        return Node(self.head, tuple(map(change, self.args)), self.value) if self.args else self


def number_node(value: int | Fraction) -> Node:
    return Node("number", (), Fraction(value))


INFINITY = Node("constant", (), "infinity")
EMPTY_SET = Node("constant", (), "emptyset")


def unsigned(node: Node) -> Node:
    """The operand of a minus sign; any other tree as it is."""
    return node.args[0] if node.head == "negate" else node


def replaced(node: Node, old: Node, new: Node) -> Node:
    """The tree with ``new`` wherever ``old`` was."""
    if node == old:
        return new
    return Node(node.head, tuple(replaced(child, old, new) for child in node.args), node.value)


def symbols(node: Node) -> set[str]:
    """Names of the free variables; indices of sums and products are bound."""
    if node.head == "symbol":
        return {node.value}
    if not node.args:
        return set()
    names = set().union(*map(symbols, node.args))
    if node.head == "apply":
        return names | {node.value}
    if node.head == "derivative" or (node.head == "integral" and len(node.args) == 1):
        return names | {bound_variable(node)}
    binds = node.head in ("sum", "product", "limit", "integral")
    return names - {bound_variable(node)} if binds else names


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
    if right.head in ("measured", "percent", "degrees") or right.value == "in words":  # 2\\frac{1}{2} \\text{ cups}
        inner = mixed(left, right.args[0])
        return inner and Node(right.head, (inner, *right.args[1:]), right.value)
    if not left.is_integer or right.head != "divide" or right.value != "\\frac":
        return None
    return Node("add", (left, right)) if all(operand.is_integer for operand in right.args) else None


def mixed_number(integer: str, upper: str, lower: str) -> Node:
    if not (integer + upper + lower).isdigit():
        raise Unreadable("two numbers stand side by side")
    return Node("add", (literal_node(integer), Node("divide", (literal_node(upper), literal_node(lower)))))


def literal_node(digits: str) -> Node:
    if "." not in digits:
        return Node("number", (), Fraction(int(digits)))
    before, _, decimals = digits.partition(".")
    significant = len((before + decimals).lstrip("0"))
    return Node("decimal", (), (Fraction(int(before + decimals), 10 ** len(decimals)), len(decimals), significant))


def three_digits(text: str) -> bool:
    return len(text.partition(".")[0]) == 3 and text[0] != "."


def integer_value(node: Node) -> int:
    if not unsigned(node).is_integer:
        raise Unreadable("an exponent is not a number")
    return int(node.value) if node.is_integer else -int(node.args[0].value)


def decorated(base: Node, mark: str) -> Node:
    if base.head not in ("symbol", "constant"):
        raise Unreadable("a prime stands after something that is not a name")
    return Node("symbol", (), base.value + mark)
