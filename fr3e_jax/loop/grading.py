"""Grading beside decoding: a rollout goes to the grader when it ends, its verdict is fetched when it is needed.

Of several processes each grades its share, and the verdicts are gathered where they are fetched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.problem import Problem
from fr3e_jax.loop.session import Session, verifier_at_fault
from fr3e_jax.rewards.grader import Pending
from fr3e_jax.rewards.verdict import Verdict
from fr3e_jax.rollouts.requests import Rollout

Case = Callable[[int, int], tuple[Problem, np.ndarray]]


class Grading:
    """The verdicts of one call of `RolloutEngine.sample`; ``ended`` is its callback.

    On several processes all must fetch the verdicts of the same requests in the same order.

    Args:
      session: whose grader is asked, and whose ``grading_wait_seconds`` counts the time that decoding did not cover.
      case: ``case(request, branch)`` is the problem and the response tokens that stand before the branch's own.
    """

    def __init__(self, session: Session, case: Case):
        self._session, self._case, self._processes = session, case, session.processes
        self._pending: dict[int, dict[int, Pending]] = {}  # of the rollouts that this process grades
        self._token_ids: dict[int, dict[int, np.ndarray]] = {}  # of all, to compare what the processes sampled

    def ended(self, rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
        """Start grading rollouts, each with its request and branch."""
        for request, branch, rollout in rollouts:
            self._token_ids.setdefault(request, {})[branch] = rollout.token_ids
            if self._processes.is_mine(request + branch):
                problem, prefix = self._case(request, branch)
                self._pending.setdefault(request, {})[branch] = self._session.submit(problem, prefix, rollout)

    def verdicts_if_done(self, request: int) -> list[Verdict] | None:
        """The verdicts of a request's branches if all processes have theirs, else None; does not wait for a worker."""
        own = all(pending.done() for pending in self._pending.get(request, {}).values())
        return self.verdicts([request])[0] if all(self._processes.gather(own)) else None

    def verdicts(self, requests: Iterable[int]) -> list[list[Verdict]]:
        """The verdicts of all branches of each request, in their order; waits for those that are not there yet."""
        start, requests = time.perf_counter(), list(requests)
        own, fault = [], None
        try:
            own = [self._own(request) for request in requests]
        except ConfigError as error:
            if self._processes.count == 1:
                raise
            fault = str(error)
        sampled = [sorted(self._token_ids.pop(request, {}).items()) for request in requests]
        told = self._processes.exchange(
            f"the grading of {len(requests)} trunk{'s' * (len(requests) > 1)}",
            [fault, [[(branch, v.reward, v.outcome) for branch, v in row.items()] for row in own]],
            sampled_tokens=[token_ids for branches in sampled for _, token_ids in branches],
        )
        self._session.grading_wait_seconds += time.perf_counter() - start
        for fault, _ in told:
            if fault is not None:
                raise ConfigError(fault)
        return [_merged([rows[n] for _, rows in told]) for n in range(len(requests))]

    def _own(self, request: int) -> dict[int, Verdict]:
        with verifier_at_fault():
            pending = self._pending.pop(request, {})
            return {branch: pending[branch].result() for branch in sorted(pending)}


def _merged(parts: list[list[tuple[int, float, str]]]) -> list[Verdict]:
    """One request's verdicts in the order of its branches, from what each process told."""
    graded = sorted(entry for part in parts for entry in map(tuple, part))
    return [Verdict(reward, outcome) for _, reward, outcome in graded]


def rewards_of(verdicts: list[Verdict]) -> np.ndarray:
    """Rewards ``[N]``."""
    return np.array([verdict.reward for verdict in verdicts])
