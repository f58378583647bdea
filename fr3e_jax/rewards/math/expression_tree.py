"""The tree that an answer is read into: one small frozen class, as all code about trees dispatches on ``head``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


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


def number(value: int | Fraction) -> Node:
    return Node("number", (), Fraction(value))


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
