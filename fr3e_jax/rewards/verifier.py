"""The interface of a reward, and the guard that the training loop puts around it.

A verifier is any callable ``(problem, response, finished) -> float``. An example of one's own::

    def shares_first_digit(problem, response, finished):
        return 0.5 * (response[:1] == problem.gold[:1]) + 0.5 * float(finished and response == problem.gold)
"""

from __future__ import annotations

import logging
import numbers
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from fr3e_jax.data.task import Problem

logger = logging.getLogger(__name__)


class Verifier(Protocol):
    """Grades one response.

    ``response`` is the text of the *whole* response, from the end of the prompt on: for a rollout that was explored
    from an anchor, the prefix it started from and its continuation, never the continuation alone. The stop token is
    not part of the text; ``finished`` says whether there was one (false: the response was cut at the length cap).
    Returns a number in [0, 1].
    """

    def __call__(self, problem: Problem, response: str, finished: bool) -> float: ...


class Grader:
    """Calls a verifier so that one broken case cannot end a run.

    A verifier that raises gives reward 0 and is counted in ``errors``; the first one is logged with its traceback.

    Raises:
      TypeError, ValueError: the verifier returned something else than a finite number in [0, 1]. That is a bug in the
        verifier and would train in silence on wrong rewards, so it is not forgiven.
    """

    def __init__(self, verifier: Verifier):
        self.verifier = verifier
        self.errors = 0

    def grade(self, problem: Problem, response: str, finished: bool) -> float:
        try:
            reward = self.verifier(problem, response, finished)
        except Exception:
            if not self.errors:
                logger.warning("the verifier raised on problem %s; its reward is 0", problem.id, exc_info=True)
            self.errors += 1
            return 0.0
        return _checked(reward, problem)


def _checked(reward: object, problem: Problem) -> float:
    found = f"the verifier returned {reward!r} for problem {problem.id}"
    if not isinstance(reward, numbers.Real | np.bool_):
        raise TypeError(f"{found}; expected a number in [0, 1]: return a float from the verifier")
    if not 0 <= reward <= 1:  # false for NaN, too
        raise ValueError(f"{found}; expected a finite number in [0, 1]: rescale what the verifier returns")
    return float(reward)
