"""Sets of real numbers in one normal form: disjoint intervals in ascending order, points being closed intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from fr3e_jax.answers.arithmetic import Arithmetic
from fr3e_jax.answers.expression_shapes import MIRROR
from fr3e_jax.answers.expression_tree import EMPTY_SET, INFINITY, Node, symbols
from fr3e_jax.answers.limits import Unreadable

_INFINITY = 10**9999


@dataclass(frozen=True, slots=True, order=True)
class End:
    """An end of an interval: just below (-1), at (0) or just above (1) a value; infinities are huge values."""

    value: Fraction
    side: int


Interval = tuple[End, End]  # from the first to the second, both included
LINE: list[Interval] = [(End(Fraction(-_INFINITY), 0), End(Fraction(_INFINITY), 0))]
_NEGATIVE: Interval = (LINE[0][0], End(Fraction(0), -1))
_POSITIVE: Interval = (End(Fraction(0), 1), LINE[0][1])
_NAMED: dict[str, list[Interval]] = {  # \mathbb{R} with its mark
    **{"R": LINE, "R+": [_POSITIVE], "R-": [_NEGATIVE], "R*": [_NEGATIVE, _POSITIVE]},
    **{"R+0": [(End(Fraction(0), 0), LINE[0][1])], "R-0": [(LINE[0][0], End(Fraction(0), 0))]},
}


def real_set(node: Node, arithmetic: Arithmetic) -> list[Interval]:
    """The normal form of intervals, finite sets, unions and so on, and inequalities in one variable.

    Raises:
      Unreadable: not a set of real numbers with ends that are numbers.
    """
    if node.head == "bracket" and len(node.args) == 2:
        return _interval(node, arithmetic)
    if node.head == "list" and any(item.head == "relation" for item in node.args):
        return _system(node, arithmetic)
    if node.head == "list" and all(item.head == "bracket" for item in node.args):
        return _combined(Node("union", node.args), arithmetic)
    if node.head in ("set", "list"):
        return _normal([(End(v, 0), End(v, 0)) for v in (_value(item, arithmetic) for item in node.args)])
    if node == EMPTY_SET:
        return []
    if node.head == "set_name" and node.value in _NAMED:
        return _NAMED[node.value]
    if node.head in ("union", "intersection", "difference"):
        return _combined(node, arithmetic)
    if node.head == "relation" and node.value == ("in",) and node.args[0].head == "symbol":
        return real_set(node.args[1], arithmetic)
    if node.head == "relation":
        return _solutions(node, arithmetic)
    raise Unreadable("not a set of real numbers")


def _combined(node: Node, arithmetic: Arithmetic) -> list[Interval]:
    sets = [real_set(Node("set", (part,)) if part.head == "number" else part, arithmetic) for part in node.args]
    result = sets[0]
    for intervals in sets[1:]:
        if node.head == "union":
            result = _normal(result + intervals)
        else:
            result = _meet(result, intervals if node.head == "intersection" else complement(intervals))
    return result


def _interval(node: Node, arithmetic: Arithmetic) -> list[Interval]:
    lower, upper = (_value(end, arithmetic) for end in node.args)
    left, right = node.value[0], node.value[-1]
    if left not in "([" or right not in ")]":
        raise Unreadable("these brackets are not an interval's")
    if not lower < upper and not (lower == upper and node.value == "[]"):
        raise Unreadable("the ends of an interval are in the wrong order")
    return [_between(lower, left == "[", upper, right == "]")]


def _between(lower: Fraction, lower_closed: bool, upper: Fraction, upper_closed: bool) -> Interval:
    start = End(lower, 0 if lower_closed or abs(lower) == _INFINITY else 1)
    return start, End(upper, 0 if upper_closed or abs(upper) == _INFINITY else -1)


def _value(node: Node, arithmetic: Arithmetic) -> Fraction:
    if node.head == "negate":
        return -_value(node.args[0], arithmetic)
    if node == INFINITY:
        return Fraction(_INFINITY)
    if symbols(node):
        raise Unreadable("an end of an interval depends on a variable")
    return arithmetic.real(node)


def _system(node: Node, arithmetic: Arithmetic) -> list[Interval]:
    """The solutions of all inequalities; of any, if joined by "or", or by commas without a common solution."""
    if len(symbols(node)) != 1:
        raise Unreadable("inequalities in several names")
    everywhere = _combined(Node("intersection", node.args), arithmetic) if node.value != "or" else []
    return everywhere or (_combined(Node("union", node.args), arithmetic) if node.value != "and" else [])


def _solutions(node: Node, arithmetic: Arithmetic) -> list[Interval]:
    """The solutions of ``a < 2x + 1 <= b``, ``x > a``, ``|x| > a``, ``x \\ne a`` and the like in their one name."""
    positions = [index for index, operand in enumerate(node.args) if symbols(operand)]
    if len(positions) != 1 or any(operator not in MIRROR for operator in node.value):
        raise Unreadable("not an inequality in one name")
    position = positions[0]
    unknown = node.args[position]
    absolute = unknown.head == "function" and unknown.value == "abs"
    slope, constant = _affine(unknown.args[0] if absolute else unknown, arithmetic)
    result = LINE
    for index, operator in enumerate(node.value):
        if position not in (index, index + 1):
            raise Unreadable("an inequality has parts without the variable")
        other = node.args[index + 1 if position == index else index]
        operator = operator if position == index else MIRROR[operator]
        result = _meet(result, _half_line(operator, _value(other, arithmetic)))
    result = _unfolded(result) if absolute else result
    return _normal([_scaled(interval, slope, constant) for interval in result])


def _affine(node: Node, arithmetic: Arithmetic) -> tuple[Fraction, Fraction]:
    """(a, b) of ``a x + b``, where x is a name; other expressions are not solved."""
    if not symbols(node):
        return Fraction(0), arithmetic.real(node)
    if node.head in ("symbol", "apply"):
        return Fraction(1), Fraction(0)
    operands = [_affine(operand, arithmetic) for operand in node.args]
    if node.head == "negate":
        return -operands[0][0], -operands[0][1]
    if node.head == "add":
        return sum((a for a, _ in operands), Fraction(0)), sum((b for _, b in operands), Fraction(0))
    if node.head == "divide" and not operands[1][0] and operands[1][1]:
        return operands[0][0] / operands[1][1], operands[0][1] / operands[1][1]
    if node.head == "multiply" and sum(a != 0 for a, _ in operands) == 1:
        factor = math.prod((b for a, b in operands if not a), start=Fraction(1))
        slope, constant = next(operand for operand in operands if operand[0])
        return slope * factor, constant * factor
    raise Unreadable("the inequality is not linear")


def _scaled(interval: Interval, slope: Fraction, constant: Fraction) -> Interval:
    """All x with ``slope x + constant`` in the interval."""
    if not slope:
        raise Unreadable("the inequality does not depend on its name")
    sign = 1 if slope > 0 else -1
    ends = [
        End(end.value * sign if abs(end.value) == _INFINITY else (end.value - constant) / slope, end.side * sign)
        for end in interval
    ]
    return min(ends), max(ends)


def _half_line(operator: str, bound: Fraction) -> list[Interval]:
    below, above = Fraction(-_INFINITY), Fraction(_INFINITY)
    if operator in ("=", "!="):
        point = [(End(bound, 0), End(bound, 0))]
        return point if operator == "=" else complement(point)
    if operator[0] == "<":
        return [_between(below, True, bound, operator == "<=")]
    return [_between(bound, operator == ">=", above, True)]


def _unfolded(values: list[Interval]) -> list[Interval]:
    """All x with \\|x\\| in ``values``."""
    positive = _meet(values, [(End(Fraction(0), 0), LINE[0][1])])
    mirrored = [(End(-upper.value, -upper.side), End(-lower.value, -lower.side)) for lower, upper in positive]
    return _normal(positive + mirrored)


def complement(intervals: list[Interval]) -> list[Interval]:
    """The rest of the line."""
    rest, start = [], LINE[0][0]
    for lower, upper in intervals:
        before = End(lower.value, lower.side - 1)
        if start <= before:
            rest.append((start, before))
        start = End(upper.value, upper.side + 1)
    return rest + ([(start, LINE[0][1])] if start <= LINE[0][1] else [])


def _meet(left: list[Interval], right: list[Interval]) -> list[Interval]:
    pairs = [(max(a[0], b[0]), min(a[1], b[1])) for a in left for b in right]
    return _normal([pair for pair in pairs if pair[0] <= pair[1]])


def _normal(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for lower, upper in sorted(intervals):
        if merged and _touches(merged[-1][1], lower):
            merged[-1] = (merged[-1][0], max(merged[-1][1], upper))
        else:
            merged.append((lower, upper))
    return merged


def _touches(end: End, start: End) -> bool:
    return start <= end or (start.value == end.value and start.side == end.side + 1)
