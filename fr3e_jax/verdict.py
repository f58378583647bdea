"""The verdict on a response, and the job that a verifier gives to a worker process where grading is slow or unsafe.

A response is *right* if its outcome is ``right``. All counts of successes ask the outcome: pass@k, success rates, the
choice of bases, kept bases, all-right and all-wrong groups, the selection of RFT. Baselines and values read the
reward. A verifier may grade it, and a method may subtract a penalty from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal[
    "right",  # the verifier accepts the response; a reward without an outcome is right from SUCCESS on
    "wrong",  # the answer was read and is not the gold answer
    "restated",  # the answer equals the gold one, and is a formula of the question that was to be worked out
    "other_form",  # the answer equals the gold one, and is not factored, expanded, ... as the question asks
    "no_answer",  # the response has no answer in the place that was asked for (or was cut)
    "refused",  # the answer is beyond a limit: too long, too deep, too large a number
    "string_only",  # the answer could not be read as mathematics, and its text differs from the gold one
    "timeout",  # the worker was not done at the deadline and was killed
    "worker_died",  # the worker ended (memory limit, signal) twice in a row on this answer
    "error",  # the verifier raised
    "judge_timeout",  # the judge gave no answer in time, several times
    "judge_unreachable",  # the judge's endpoint could not be reached, was overloaded, or refused the request
    "judge_unparseable",  # the judge's answer has no score in it
]
UNGRADED = ("judge_timeout", "judge_unreachable", "judge_unparseable")
"""Outcomes without a reward, which say nothing about the response: it takes part in no baseline and no loss."""
FAULTS = ("error", "timeout", "worker_died", *UNGRADED)
"""Outcomes of a verifier or judge that failed."""


@dataclass(frozen=True)
class Verdict:
    """The reward of one response in [0, 1], and its outcome, which is counted in the metrics."""

    reward: float
    outcome: Outcome

    @property
    def right(self) -> bool:
        """Return whether the verifier accepts the response, whatever the reward."""
        return self.outcome == "right"

    @property
    def graded(self) -> bool:
        """Return whether there is a reward."""
        return self.outcome not in UNGRADED


@dataclass(frozen=True)
class Job:
    """Work for a worker process: call ``function(*arguments)`` there, which returns a ``Verdict`` or a float.

    Attributes:
      function: ``package.module:NAME`` or ``FILE.py:NAME``. If it has an attribute ``canaries``, pairs
        ``(arguments, reward)``, each worker checks it with them before its first job.
      arguments: picklable and hashable; equal functions and arguments always give equal verdicts if ``cacheable``.
      deadline: CPU seconds after which its worker is killed; None: ``rewards.deadline_seconds``. A worker that waits
        instead is killed after five times that on the clock.
      cacheable: whether the verdict may be remembered.
    """

    function: str
    arguments: tuple[Any, ...]
    deadline: float | None = None
    cacheable: bool = True
