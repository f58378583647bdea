"""Verdicts of a worker process: on expressions numerically, on calculus by sympy.

This module imports sympy and mpmath (a second or so), never jax. sympy may hang or exhaust the memory; the pool's
deadline and memory limit end it.
"""

from __future__ import annotations

from fractions import Fraction

from fr3e_jax.rewards.math.compare import same
from fr3e_jax.rewards.math.exact_numbers import Undefined
from fr3e_jax.rewards.math.expression_tree import Node
from fr3e_jax.rewards.math.items import single_values
from fr3e_jax.rewards.math.limits import Contradiction, Refused, Unreadable
from fr3e_jax.rewards.math.numeric_arithmetic import NumericArithmetic
from fr3e_jax.rewards.math.quantity import Quantity, units_conflict
from fr3e_jax.rewards.math.quick import REFUSED, RIGHT, WRONG, quick_verdict
from fr3e_jax.rewards.math.reader import readings
from fr3e_jax.rewards.verdict import Verdict

_STRING_ONLY = Verdict(0.0, "string_only")


def verdict(golds: str | tuple[str, ...], answer: str, absolute: float = 0.0, relative: float = 0.0) -> Verdict:
    """The verdict on an answer; see ``judge`` in the package."""
    golds = (golds,) if isinstance(golds, str) else golds
    verdicts = [_judged(gold, answer) for gold in golds]
    if RIGHT in verdicts:
        return RIGHT
    if (absolute or relative) and any(is_close(gold, answer, absolute, relative) for gold in golds):
        return RIGHT
    return verdicts[0]


def _judged(gold: str, answer: str) -> Verdict:
    quick = quick_verdict(gold, answer)
    if quick is not None:
        return quick
    try:
        pairs, arithmetic = list(readings(gold, answer)), NumericArithmetic()
        return RIGHT if any(same(left, right, arithmetic) for left, right in pairs) else WRONG
    except (Refused, RecursionError):
        return REFUSED
    except (Contradiction, Undefined):
        return WRONG
    except (Unreadable, ArithmeticError):  # of a tree, too, which may have no meaning after all
        return _STRING_ONLY


def is_close(gold: str, answer: str, absolute: float, relative: float) -> bool:
    """Whether ``answer`` has as many numbers as ``gold``, in any order, each within a tolerance of the gold one.

    ``relative`` applies only to gold numbers that were rounded: decimals and powers of ten.
    """
    try:
        return any(_close(*pair, absolute, relative) for pair in readings(gold, answer))
    except (Refused, Unreadable, Contradiction, ArithmeticError):
        return False


def _close(gold: Node, answer: Node, absolute: float, relative: float) -> bool:
    golds, answers = single_values(gold), single_values(answer)
    if len(golds) != len(answers):
        return False
    if any(units_conflict(a.unit, b.unit) or a.percent != b.percent for a, b in zip(golds, answers, strict=True)):
        return False
    sides = [
        sorted(((NumericArithmetic().real(q.core), q) for q in side), key=lambda pair: pair[0])
        for side in (golds, answers)
    ]
    return all(
        abs(value - wanted) <= max(Fraction(absolute), Fraction(relative) * abs(wanted) if _rounded(quantity) else 0)
        for (wanted, quantity), (value, _) in zip(*sides, strict=True)
    )


def _rounded(quantity: Quantity) -> bool:
    """Whether a gold number is a decimal, or a number times a power of ten."""
    parts = list(quantity.core.walk())
    powers = [part for part in parts if part.head == "power" and part.args[0] == Node("number", (), Fraction(10))]
    return any(part.head == "decimal" for part in parts) or bool(powers)
