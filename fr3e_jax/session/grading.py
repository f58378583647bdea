"""Grading beside decoding: rollouts go to the grader when they end; verdicts are fetched when they are needed.

Each of several processes grades its share. Fetching a verdict gathers it from all processes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.judge_section import JUDGE
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.grader import UNUSABLE, Grader, Pending
from fr3e_jax.rewards.verifier import plain_outcome
from fr3e_jax.rollouts.episode import EpisodeRecord
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.session.texts import Texts
from fr3e_jax.verdict import FAULTS, Verdict

Case = Callable[[int, int], tuple[Problem, np.ndarray]]
"""(request, branch) -> its problem, and the response tokens before the branch's own."""


class GradingFailed(RuntimeError):
    """Nearly all verdicts of a round or an evaluation are failures of the verifier."""


ENVIRONMENT = "environment"
FAILED_SHARE = 0.95  # of the verdicts, from which on the verifier has failed and not the policy
JUDGE_COUNTS = ("calls", "cached", "retries", "prompt_tokens", "completion_tokens")
FEWEST_VERDICTS = 8  # of which a share says something


@dataclass(frozen=True)
class RewardRange:
    """The sums of an episode's rewards that count as 0 and as 1 (``environment.reward_range``)."""

    least: float = 0.0
    most: float = 1.0

    def verdict(self, episode: EpisodeRecord, problem_id: str) -> Verdict:
        """The verdict on an episode; its outcome is the environment's own word, or follows from the reward.

        A fault gives 0, whatever the turns before it have earned.

        Raises:
          ValueError: the sum is out of range.
        """
        if episode.fault:
            return Verdict(0.0, "error")
        total = math.fsum(episode.rewards)
        if not self.least <= total <= self.most:
            raise ValueError(
                f"the rewards of an episode of problem {problem_id}, {episode.rewards}, sum to {total:g}; expected a "
                f"sum within environment.reward_range=[{self.least:g},{self.most:g}]: set it to the least and the "
                "greatest sum of an episode"
            )
        reward = (total - self.least) / (self.most - self.least)
        if episode.right is None:
            return Verdict(reward, plain_outcome(reward))
        return Verdict(reward, "right" if episode.right else "wrong")


class ResponseGrader:
    """Grades whole responses of token ids, and counts how their rewards came about.

    A context manager: its worker processes end with the block.

    Args:
      grader: grades texts.
      texts: turns token ids into the text that is graded.
      processes: they share the rollouts.
      of_episodes: the range of an episode's rewards.
    """

    def __init__(self, grader: Grader, texts: Texts, processes: Processes, of_episodes: RewardRange = RewardRange()):
        self.grader, self.processes, self._range = grader, processes, of_episodes
        self._texts = texts
        self._wait_seconds = 0.0

    def __enter__(self) -> ResponseGrader:
        self.grader.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.grader.__exit__(*error)

    def submit(self, problem: Problem, prefix: np.ndarray, rollout: Rollout) -> Pending:
        """Start grading a full response: the base tokens before the fork and the rollout's own.

        An episode has its rewards already.
        """
        if rollout.episode is not None:
            with as_config_error(*UNUSABLE):
                verdict = self._range.verdict(rollout.episode, problem.id)
                return self.grader.record_verdict(problem.id, verdict, rollout.episode.fault)
        response = self._texts.response_text(np.concatenate([prefix, rollout.token_ids]), rollout.finished)
        with as_config_error(*UNUSABLE):
            return self.grader.submit(problem, response, rollout.finished)

    def result(self, pending: Pending) -> Verdict:
        """The verdict of a submitted response; waits for it."""
        with as_config_error(*UNUSABLE):
            return pending.result()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time within the block as waiting for verdicts."""
        start = time.perf_counter()
        yield
        self._wait_seconds += time.perf_counter() - start

    def check(self, outcomes: Iterable[str], where: str) -> None:
        """Raise if nearly all ``outcomes`` are failures of the verifier; all processes give the same outcomes.

        Args:
          outcomes: of all verdicts of a round or an evaluation.
          where: names the round or the evaluation.

        Raises:
          GradingFailed: at least `FAILED_SHARE` of `FEWEST_VERDICTS` or more verdicts failed; with the first failure.
        """
        counts = Counter(outcomes)
        total, failed = counts.total(), {name: counts[name] for name in FAULTS if counts[name]}
        if total < FEWEST_VERDICTS or sum(failed.values()) < FAILED_SHARE * total:
            return
        first = next((text for text in self.processes.gather(self.grader.first_failure) if text), "")
        listed = ", ".join(f"{count} {name}" for name, count in failed.items())
        judge = self.grader.judge
        cure = "(data.verifier), or raise rewards.deadline_seconds or rewards.memory_mb"
        if judge == ENVIRONMENT:
            cure, first = "(environment.kind), or raise environment.seconds", first.partition("\n")[0]
        if judge == JUDGE:
            cure = "(judge.model at judge.base_url), or raise judge.seconds"
        raise GradingFailed(
            f"the {judge} failed on {sum(failed.values())} of {total} responses {where} ({listed}). This says nothing "
            f"about the policy: mend the {judge} {cure}, then continue with --resume. The first failure: the {judge} "
            f"{first}"
        )

    def take_wait_seconds(self) -> float:
        """Seconds spent waiting for verdicts since the last call; decoding did not cover them."""
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        return seconds

    def take_outcomes(self) -> Counter[str]:
        """`Grader.take_outcomes`, summed over the processes."""
        return sum(map(Counter, self.processes.gather(self.grader.take_outcomes())), Counter())

    def take_judge_counts(self) -> dict[str, int]:
        """``judge/NAME``: what the judge was asked since the last call, and its tokens, over all processes."""
        take = getattr(self.grader.verifier, "take_counts", None)
        if take is None:
            return {}
        counts = sum(map(Counter, self.processes.gather(take())), Counter())
        return {f"judge/{name}": counts[name] for name in JUDGE_COUNTS}

    def take_reward_means(self) -> dict[str, float]:
        """``rewards/NAME``: the mean of each reward function of a program, over all responses since the last call."""
        take = getattr(self.grader.verifier, "take_sums", None)
        sums = self.processes.gather(take()) if take else [{}]
        counts = {name: sum(each[name][1] for each in sums) for name in sums[0]}
        return {
            f"rewards/{name}": math.fsum(each[name][0] for each in sums) / count
            for name, count in counts.items()
            if count
        }


class Grading:
    """The verdicts of one call of `RolloutEngine.sample`; ``ended`` is its callback.

    All processes must fetch the verdicts of the same requests in the same order.

    Args:
      grader: grades the responses.
      case: the problem and the earlier response tokens of a branch.
    """

    def __init__(self, grader: ResponseGrader, case: Case):
        self._grader, self._case, self._processes = grader, case, grader.processes
        self._pending: dict[int, dict[int, Pending]] = {}  # of the rollouts that this process grades
        self._token_ids: dict[int, dict[int, np.ndarray]] = {}  # of all rollouts, to compare the processes' samples
        self._awaited: set[int] = set()  # requests whose branches have all ended, and whose verdicts are not here
        self._asked: set[int] = set()  # requests asked for since the processes last spoke
        self._ready: dict[int, list[Verdict]] = {}  # of requests that all processes had graded then

    def ended(self, rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
        """Start grading the rollouts, each given as (request, branch, rollout)."""
        for request, branch, rollout in rollouts:
            self._token_ids.setdefault(request, {})[branch] = rollout.token_ids
            if self._processes.is_mine(request + branch):
                problem, prefix = self._case(request, branch)
                self._pending.setdefault(request, {})[branch] = self._grader.submit(problem, prefix, rollout)

    def verdicts_if_done(self, request: int) -> list[Verdict] | None:
        """The verdicts of a request's branches if all processes have theirs, else None; waits for no worker.

        The processes speak once in each pass over the open requests, about all of them; a request that is new in a
        pass waits for the next one.
        """
        if request not in self._ready:  # or it would be collected a second time, without verdicts
            self._awaited.add(request)
            if self._processes.count == 1 or request in self._asked or not self._asked:
                self._asked.clear()
                self._collect()
            self._asked.add(request)
        return self._ready.pop(request, None)

    def _collect(self) -> None:
        """Take over the verdicts of the awaited requests that all processes have graded."""
        graded = [request for request in sorted(self._awaited) if self._is_graded(request)]
        shared = set.intersection(*map(set, self._processes.gather(graded)))
        if requests := sorted(shared):
            self._ready |= dict(zip(requests, self.verdicts(requests), strict=True))

    def _is_graded(self, request: int) -> bool:
        return all(pending.done() for pending in self._pending.get(request, {}).values())

    def verdicts(self, requests: Iterable[int]) -> list[list[Verdict]]:
        """The verdicts of all branches of each request, in their order; waits for missing ones.

        Raises:
          ConfigError: the verifier of any process cannot be used.
        """
        requests = list(requests)
        if len(requests) == 1 and (ready := self._ready.pop(requests[0], None)) is not None:
            return [ready]
        self._awaited.difference_update(requests)
        with self._grader.waiting():
            answers = self._exchange(requests)
        for fault, _ in answers:
            if fault is not None:
                raise ConfigError(fault)
        return [_merged([rows[n] for _, rows in answers]) for n in range(len(requests))]

    def _exchange(self, requests: list[int]) -> list[Any]:
        """The fault of each process, or None, and its verdicts of each request."""
        graded, fault = [], None
        try:
            graded = [self._own(request) for request in requests]
        except ConfigError as error:
            if self._processes.count == 1:
                raise
            fault = str(error)
        sampled = [sorted(self._token_ids.pop(request, {}).items()) for request in requests]
        return self._processes.exchange(
            f"the grading of {len(requests)} trunk{'s' * (len(requests) > 1)}",
            [fault, [[(branch, v.reward, v.outcome) for branch, v in row.items()] for row in graded]],
            sampled_tokens=[token_ids for branches in sampled for _, token_ids in branches],
        )

    def _own(self, request: int) -> dict[int, Verdict]:
        pending = self._pending.pop(request, {})
        return {branch: self._grader.result(pending[branch]) for branch in sorted(pending)}


def _merged(parts: list[list[tuple[int, float, str]]]) -> list[Verdict]:
    """One request's verdicts in the order of its branches, from the parts of all processes."""
    graded = sorted(entry for verdicts in parts for entry in map(tuple, verdicts))
    return [Verdict(reward, outcome) for _, reward, outcome in graded]


def rewards_of(verdicts: list[Verdict]) -> np.ndarray:
    """Rewards of the verdicts, float64 ``[verdicts]``."""
    return np.array([verdict.reward for verdict in verdicts])
