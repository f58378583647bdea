"""A single value without its per-cent sign, degree sign or unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fr3e_jax.answers.expression_tree import Node, number_node
from fr3e_jax.answers.limits import Unreadable
from fr3e_jax.answers.units import NO_UNIT, Unit, unit, without_remark

_UNIT_WORDS = 6
_ARGUING = re.compile(r"\d|\b(not|no|or|nor|but|either|wait|maybe|also|instead|answer)\b", re.IGNORECASE)
_EXPONENTS = re.compile(r"\^\{?-?\d+\}?")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value: its tree ``core``, whether it is in ``percent``, and its ``unit``."""

    core: Node
    percent: bool = False
    unit: Unit = NO_UNIT


def quantity(node: Node) -> Quantity:
    """The value of a tree, apart from words, per-cent sign and degree sign.

    Raises:
      Unreadable: the words after the value are not a unit but a remark that may take it back.
    """
    if node.head == "measured":
        inner = quantity(node.args[0])
        return Quantity(inner.core, inner.percent, _unit(node.value))
    if node.head == "negate":
        inner = quantity(node.args[0])
        return Quantity(Node("negate", (inner.core,)), inner.percent, inner.unit)
    if node.head == "percent":
        return Quantity(node.args[0], percent=True)
    if node.head == "degrees":
        return Quantity(node.args[0], unit=unit("deg"))
    if node.head == "multiply" and all(operand.head == "measured" for operand in node.args):
        return _compound([quantity(operand) for operand in node.args])
    if node.head in ("multiply", "add", "divide") and node.args[-1].head in ("measured", "percent", "degrees"):
        last = quantity(node.args[-1])
        if node.head == "add" and any(operand.head != "measured" for operand in node.args) and last.unit == NO_UNIT:
            return Quantity(node)
        operands = tuple(
            quantity(operand).core if operand.head == node.args[-1].head else operand for operand in node.args[:-1]
        )
        return Quantity(Node(node.head, (*operands, last.core), node.value), last.percent, last.unit)
    return Quantity(node)


def _compound(parts: list[Quantity]) -> Quantity:
    """``2 hours 30 minutes``: a sum, in the last unit, of quantities of one dimension whose units get smaller.

    Raises:
      Unreadable: these are no parts of one quantity.
    """
    last = parts[-1].unit
    scales = [part.unit.scale for part in parts]
    if not last.powers or any(part.unit.powers != last.powers for part in parts) or scales != sorted(set(scales))[::-1]:
        raise Unreadable("two quantities stand side by side")
    terms = [Node("multiply", (part.core, number_node(part.unit.scale / last.scale))) for part in parts]
    return Quantity(Node("add", tuple(terms)), unit=last)


def _unit(words: str) -> Unit:
    words = without_remark(words)
    if len(words.split()) > _UNIT_WORDS or _ARGUING.search(_EXPONENTS.sub("", words)):
        raise Unreadable("the words after the answer are not a unit")
    return unit(words)
