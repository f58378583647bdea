"""The interface of a verifier, and the check of what it returns.

A verifier is any callable ``(problem, response, finished) -> float | Verdict | Job``. An example of one's own::

    def shares_first_digit(problem, response, finished):
        return 0.5 * (response[:1] == problem.gold[:1]) + 0.5 * float(finished and response == problem.gold)

A number alone is right from 1 on. A verifier of graded rewards that accepts less says so: ``Verdict(0.8, "right")``.
"""

from __future__ import annotations

import numbers
from concurrent.futures import Future
from typing import Protocol, cast, get_args

import numpy as np

from fr3e_jax.problem import Problem
from fr3e_jax.verdict import Job, Outcome, Verdict

SUCCESS = 1.0  # the least reward that makes a response right, if the verifier gives no outcome
OUTCOMES: tuple[str, ...] = get_args(Outcome)

UNJUDGED = (
    "a dataset card has verifier: judge, and no judge alone gives the rewards; set judge.model and judge.base_url, "
    "with judge.weight=1, or another verifier in the card"
)


class UserCodeError(RuntimeError):
    """Code of the user raised in the run's own process, where it is to be seen; the cause has its traceback."""


class NoVerdict(Exception):
    """A judge, or the verifier beside it, failed with this outcome; the text completes "the judge ..."."""

    def __init__(self, outcome: Outcome, text: str):
        super().__init__(text)
        self.outcome = outcome


class Verifier(Protocol):
    """Grades one response.

    ``response`` is the text of the *whole* response, from the end of the prompt on. For a rollout from an anchor that
    is the prefix it started from and its continuation. The stop token is not part of the text; ``finished`` says
    whether there was one (false: the response was cut at the length cap).

    Returns a number in [0, 1] or a ``Verdict``, at once; or a ``Job`` where that could take long or run foreign code.
    A verifier that asks elsewhere returns a future of a ``Verdict``, which may raise `NoVerdict`.

    An attribute ``job_functions``, a tuple of ``Job.function``, is optional: the grader starts its workers with these
    functions before the first job. It raises at once if it cannot load one of them.
    """

    def __call__(self, problem: Problem, response: str, finished: bool) -> float | Verdict | Job | Future[Verdict]: ...


def exact_match(problem: Problem, response: str, finished: bool) -> float:
    """1 if the response was finished and equals ``problem.gold`` exactly (nothing is stripped), else 0.

    A problem without a gold answer has no right response.
    """
    return float(finished and response == problem.gold != "")


def unjudged(problem: Problem, response: str, finished: bool) -> float:
    """The verifier of a dataset card that leaves its problems to a judge; it raises."""
    raise RuntimeError(UNJUDGED)


def is_number(reward: object) -> bool:
    """Return whether ``reward`` is a real number, of Python or of NumPy, true and false included."""
    return isinstance(reward, numbers.Real | np.bool_)


def plain_outcome(reward: float) -> Outcome:
    """The outcome of a reward that came without one: "right" from ``SUCCESS`` on, "wrong" below."""
    return "right" if reward >= SUCCESS else "wrong"


def checked_verdict(reward: float, outcome: str | None, problem_id: str) -> Verdict:
    """The verdict of a reward; without an outcome it has that of `plain_outcome`.

    Raises:
      TypeError, ValueError: not a finite number in [0, 1], or no outcome of that name. That is a bug in the verifier,
        and the run stops rather than train on wrong rewards in silence.
    """
    if not is_number(reward):
        raise unusable(TypeError, repr(reward), problem_id)
    if not 0 <= reward <= 1:  # false for NaN, too
        raise unusable(ValueError, repr(reward), problem_id)
    if outcome is None:
        outcome = plain_outcome(reward)
    elif outcome not in OUTCOMES:
        raise ValueError(
            f"the verifier returned the outcome {outcome!r} for problem {problem_id}; expected one of {OUTCOMES}"
        )
    return Verdict(float(reward), cast(Outcome, outcome))


def unusable(kind: type[Exception], result: str, problem_id: str) -> Exception:
    """The error for a result that a verifier must not return; ``result`` is its repr."""
    expected = {
        TypeError: "a number in [0, 1]: return a float from the verifier",
        ValueError: "a finite number in [0, 1]: rescale what the verifier returns",
    }[kind]
    return kind(f"the verifier returned {result} for problem {problem_id}; expected {expected}")
