"""A single value without its per-cent sign, degree sign or unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fr3e_jax.answers.expression_tree import Node
from fr3e_jax.answers.limits import Unreadable

_UNIT_WORDS = 6
_ARGUING = re.compile(r"\d|\b(not|no|or|nor|but|either|wait|maybe|also|instead|answer)\b", re.IGNORECASE)
_DIMENSIONS = re.compile(r"(?:square|sq|cubic|cu)\s+(?!units?$)")
_EXPONENTS = re.compile(r"\^\{?-?\d+\}?")
_SAME_UNIT = {
    **dict.fromkeys(("centimeter", "centimetre"), "cm"),
    **dict.fromkeys(("millimeter", "millimetre"), "mm"),
    **dict.fromkeys(("kilometer", "kilometre"), "km"),
    **dict.fromkeys(("meter", "metre"), "m"),
    **{"kilogram": "kg", "gram": "g", "milligram": "mg", "liter": "l", "litre": "l", "milliliter": "ml"},
    **{"second": "s", "sec": "s", "minute": "min", "hour": "h", "hr": "h", "inche": "inch", "in": "inch"},
    **{"feet": "ft", "foot": "ft", "mile": "mi", "yard": "yd", "pound": "lb", "ounce": "oz"},
    **{"degree": "deg", "radian": "rad"},
}
_KNOWN_UNITS = set(_SAME_UNIT.values()) | {"am", "pm", "cent", "dollar", "day", "week", "month", "year"}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value: its tree ``core``, whether it is in ``percent``, and its normalised ``unit`` or ""."""

    core: Node
    percent: bool = False
    unit: str = ""


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
        return Quantity(node.args[0], unit="deg")
    if node.head in ("multiply", "add", "divide") and node.args[-1].head in ("measured", "percent", "degrees"):
        last = quantity(node.args[-1])
        if node.head == "add" and any(operand.head != "measured" for operand in node.args) and last.unit == "":
            return Quantity(node)
        operands = tuple(
            quantity(operand).core if operand.head == node.args[-1].head else operand for operand in node.args[:-1]
        )
        return Quantity(Node(node.head, (*operands, last.core), node.value), last.percent, last.unit)
    return Quantity(node)


def units_conflict(left: str, right: str) -> bool:
    """Return whether both are known units, and different ones: metres are not centimetres, apples may be anything."""
    return left != right and all(unit.partition("^")[0] in _KNOWN_UNITS for unit in (left, right))


def _unit(words: str) -> str:
    if len(words.split()) > _UNIT_WORDS or _ARGUING.search(_EXPONENTS.sub("", words)):
        raise Unreadable("the words after the answer are not a unit")
    words = re.sub(r"[.{}]", "", words).strip().lower()
    dimension = _DIMENSIONS.match(words)
    if dimension:
        words = f"{words[dimension.end() :]}^{2 if words.startswith('sq') else 3}"
    name, power, exponent = words.partition("^")
    name = name.strip()
    if name not in _SAME_UNIT and name.endswith("s") and len(name) > 2:
        name = name[:-1]
    return _SAME_UNIT.get(name, name) + power + exponent
