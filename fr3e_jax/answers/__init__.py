"""Judge whether an answer in LaTeX or plain text is the gold answer; docs/users/grading.md states the conventions.

This file is the package's only door, and only ``fr3e_jax.rewards`` imports it. Importing it loads no sympy; the first
call of ``judge`` does.
"""

from __future__ import annotations

from fr3e_jax.answers.quick import RIGHT, WRONG, chosen_letter, verdict_on_pair
from fr3e_jax.answers.restatement import earned
from fr3e_jax.verdict import Verdict

__all__ = ["RIGHT", "WRONG", "chosen_letter", "judge", "quick_verdict"]


def judge(
    golds: str | tuple[str, ...], answer: str, absolute: float = 0.0, relative: float = 0.0, question: str = ""
) -> Verdict:
    """The verdict on an answer. sympy may hang on it: call this in a worker process, which has a deadline.

    Args:
      golds: a gold answer, or several of which one suffices; bare or in dollars, without ``\\boxed``.
      answer: the answer, as bare as the gold one.
      absolute, relative: how far off a decimal may be from a gold answer.
      question: the text of the question, so that an answer that only repeats it is wrong; "": equality suffices.
    """
    from fr3e_jax.answers import symbolic  # here, because sympy takes a second and the main process needs none

    golds = (golds,) if isinstance(golds, str) else golds
    return earned(symbolic.verdict(golds, answer, absolute, relative), question, golds, answer)


judge.canaries = (
    ((r"\frac{\sqrt{12}}{x+1}", r"\dfrac{2\sqrt3}{1+x}"), 1.0),
    ((r"\sin^2 t+\cos 2t", r"1+\sin^2 t"), 0.0),
    # sympy answers this one, so that a worker has loaded its integrals before its first deadline.
    ((r"\frac{1}{3}", r"\int_0^1 x^2 \,dx"), 1.0),
)


def quick_verdict(
    golds: str | tuple[str, ...], answer: str, absolute: float = 0.0, relative: float = 0.0, question: str = ""
) -> Verdict | None:
    """The verdict of ``judge`` if it is certain without sympy, in bounded time; None if a worker has to decide."""
    golds = (golds,) if isinstance(golds, str) else golds
    verdicts = [verdict_on_pair(gold, answer) for gold in golds]
    if RIGHT in verdicts:
        return earned(RIGHT, question, golds, answer)
    return None if None in verdicts or absolute or relative else verdicts[0]
