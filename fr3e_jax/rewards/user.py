"""A verifier of the user's own: one function in a file or module that the setting ``data.verifier`` names.

The worker processes import and call it, the run's own process never does. So it may import what it likes, hang or
crash, and costs the reward of one response at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fr3e_jax.problem import Problem
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rewards.named_verifiers import VERIFIERS
from fr3e_jax.rewards.verifier import Verifier
from fr3e_jax.user_code import parse_reference
from fr3e_jax.verdict import Job

LONGEST_REASON = 300  # characters


@dataclasses.dataclass(frozen=True)
class UserVerifier:
    """A verifier that calls ``function(problem, response, finished)`` in a worker; its verdicts are not cached."""

    function: str

    @property
    def job_functions(self) -> tuple[str, ...]:
        return (self.function,)

    def __call__(self, problem: Problem, response: str, finished: bool) -> Job:
        # A mapping that cannot be pickled (a view, a proxy) becomes a dict; the function sees an ordinary Problem.
        problem = dataclasses.replace(problem, extra=dict(problem.extra))
        return Job(self.function, (problem, response, finished), cacheable=False)


def check_by_a_call(grader: Grader, problems: Sequence[Problem], spec: str) -> None:
    """Call the user's verifier once, with a first problem and its gold answer as the response.

    A verifier that is too slow passes: the machine may be busy.

    Raises:
      ValueError: it raised, as with other arguments than (problem, response, finished).
      TypeError: it returned no reward.
      VerifierError: no worker can run it.
    """
    if not len(problems):
        return
    problem = problems[0]
    if failure := grader.probe(problem, problem.gold):
        last = failure.strip().splitlines()[-1]
        last = last if len(last) <= LONGEST_REASON else f"{last[:LONGEST_REASON]} ..."
        raise ValueError(
            f"data.verifier={spec} failed on a first call, with problem {problem.id} and its gold answer as the "
            f"response: {last}; expected a function (problem, response, finished) that returns a number in [0, 1]"
        )


def user_verifier(spec: str) -> Verifier | None:
    """The user's verifier that ``data.verifier`` names; None for the empty string and a name of `VERIFIERS`.

    Args:
      spec: ``FILE.py:NAME`` (relative to the working directory) or ``package.module:NAME``.

    Raises:
      ValueError: ``spec`` is neither. ``Grader`` finds errors inside the file.
      FileNotFoundError: there is no such file.
    """
    if not spec or spec in VERIFIERS:
        return None
    return UserVerifier(str(parse_reference(spec, "data.verifier")))
