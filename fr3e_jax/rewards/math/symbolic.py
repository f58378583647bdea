"""The judge that runs in a worker process: expressions numerically, calculus by sympy.

Imports sympy and mpmath (a second or so), never jax. A call may hang or exhaust the memory where sympy does; the pool's
deadline and memory limit are what ends it.
"""

from __future__ import annotations

from fr3e_jax.rewards.math.closeness import is_close
from fr3e_jax.rewards.math.compare import same
from fr3e_jax.rewards.math.exact import Undefined
from fr3e_jax.rewards.math.limits import Contradiction, Refused, Unreadable
from fr3e_jax.rewards.math.numeric_arithmetic import NumericArithmetic
from fr3e_jax.rewards.math.quick import REFUSED, RIGHT, WRONG, quick_verdict
from fr3e_jax.rewards.math.readings import readings
from fr3e_jax.rewards.math.tree import Node
from fr3e_jax.rewards.verdict import Verdict

_STRING_ONLY = Verdict(0.0, "string_only")


def judge(golds: str | tuple[str, ...], answer: str, absolute: float = 0.0, relative: float = 0.0) -> Verdict:
    """The verdict on an answer; the texts are bare or in dollars, without ``\\boxed``.

    Args:
      golds: a gold answer, or several of which one suffices.
      absolute, relative: how far off a decimal may be from a gold answer.
    """
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
        pairs = list(readings(gold, answer))
    except (Refused, RecursionError):
        return REFUSED
    except Unreadable:
        return _STRING_ONLY
    return _compared(pairs)


def _compared(pairs: list[tuple[Node, Node]]) -> Verdict:
    """The verdict on what was read; what has no meaning after all is no more than a string."""
    try:
        arithmetic = NumericArithmetic()
        return RIGHT if any(same(left, right, arithmetic) for left, right in pairs) else WRONG
    except (Refused, RecursionError):
        return REFUSED
    except (Contradiction, Undefined):
        return WRONG
    except (Unreadable, ArithmeticError):
        return _STRING_ONLY


judge.canaries = (
    ((r"\frac{\sqrt{12}}{x+1}", r"\dfrac{2\sqrt3}{1+x}"), 1.0),
    ((r"\sin^2 t+\cos 2t", r"1+\sin^2 t"), 0.0),
    # sympy answers this one, so that a worker has loaded its integrals before its first deadline.
    ((r"\frac{1}{3}", r"\int_0^1 x^2 \,dx"), 1.0),
)
