"""Each process grades its share; all get all verdicts, or the same error."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from process_threads import together

from fr3e_jax.cluster.processes import Divergence, Processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.session.grading import Grading, GradingFailed, ResponseGrader
from fr3e_jax.verdict import Verdict


class _Slow:
    """A verdict that arrives after ``asked`` polls."""

    def __init__(self, verdict, asked=0):
        self._verdict, self._left = verdict, asked

    def done(self):
        self._left -= 1
        return self._left < 0

    def result(self):
        if isinstance(self._verdict, Exception):
            raise self._verdict
        return self._verdict


def graded(processes, verdict_of, tokens_of=lambda index, branch: np.int32([branch])):
    """A `Grading` of two requests with three branches each, and the cases that this process graded."""
    mine = []

    def submit(problem, response, finished):
        mine.append(problem)
        return verdict_of(processes.index, problem)

    texts = SimpleNamespace(response_text=lambda token_ids, finished: "")
    grader = ResponseGrader(SimpleNamespace(submit=submit), texts, processes)
    grading = Grading(grader, lambda request, branch: ((request, branch), np.zeros(0, np.int32)))
    sampled = lambda branch: SimpleNamespace(token_ids=tokens_of(processes.index, branch), finished=True, episode=None)
    for request in range(2):
        grading.ended([(request, branch, sampled(branch)) for branch in (2, 0, 1)])
    return grading, mine


def verdict_of(_, case):
    return _Slow(Verdict(case[0] + case[1] / 4, "right" if case[1] else "wrong"))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_process_grades_its_share_and_gets_all_verdicts(count):
    def grade(processes):
        grading, mine = graded(processes, verdict_of)
        return grading.verdicts(range(2)), mine

    results = together(count, grade) if count > 1 else [grade(Processes())]
    everything = [[Verdict(r + b / 4, "right" if b else "wrong") for b in range(3)] for r in range(2)]
    assert all(verdicts == everything for verdicts, _ in results)
    shares = [case for _, mine in results for case in mine]
    assert sorted(shares) == sorted({(r, b) for r in range(2) for b in range(3)}), "each rollout is graded once"


def test_no_process_chooses_before_all_have_their_verdicts():
    def ask(processes):
        slow = lambda index, case: _Slow(Verdict(1.0, "right"), asked=2 if index == 1 else 0)
        grading, _ = graded(processes, slow)
        return [grading.verdicts_if_done(0) is None for _ in range(2)]

    assert together(2, ask)[0] == together(2, ask)[1] == [True, True]
    assert together(2, lambda p: graded(p, verdict_of)[0].verdicts_if_done(1) is None) == [False, False]


def test_verdicts_that_another_request_brought_are_kept_until_they_are_asked_for():
    """The second request brings those of the first, and is graded itself before the first is asked for again."""
    arrived = set()

    def submitted(_, case):
        return SimpleNamespace(done=lambda: case[0] in arrived, result=verdict_of(0, case).result)

    grading, _ = graded(Processes(), submitted)
    assert grading.verdicts_if_done(0) is None
    arrived.add(0)
    assert grading.verdicts_if_done(1) is None
    arrived.add(1)
    verdicts = [grading.verdicts_if_done(request) for request in (0, 1)]
    assert verdicts == [[Verdict(r + b / 4, "right" if b else "wrong") for b in range(3)] for r in range(2)]


def test_processes_speak_once_in_a_pass_over_the_open_requests():
    def ask(processes):
        grading, _ = graded(processes, verdict_of)
        messages, gather = [], processes.gather
        object.__setattr__(processes, "gather", lambda content: messages.append(content) or gather(content))
        passes = [[grading.verdicts_if_done(request) for request in open_ones] for open_ones in ([0, 1], [1])]
        return [[verdicts is None for verdicts in row] for row in passes], len(messages)

    first, second = together(2, ask)
    assert first == second
    assert first[0] == [[False, True], [False]], "a request that is new in a pass waits for the next"
    assert first[1] == 4, "which are graded, and their verdicts, in each of two passes"


def test_a_verifier_that_fails_on_one_process_ends_all():
    def ask(processes):
        broken = lambda index, case: _Slow(ValueError("no number") if case == (1, 0) else Verdict(1.0, "right"))
        return graded(processes, broken)[0].verdicts(range(2))

    assert [(type(error), str(error)) for error in together(2, ask)] == [(ConfigError, "no number")] * 2


def test_different_tokens_on_one_process_raise_with_the_verdicts():
    def ask(processes):
        tokens = lambda index, branch: np.int32([branch, index if branch == 2 else 0])
        return graded(processes, verdict_of, tokens)[0].verdicts(range(2))

    for error in together(2, ask):
        assert isinstance(error, Divergence) and "'sampled_tokens'" in str(error)


def grader_that_said(first_failure):
    return ResponseGrader(SimpleNamespace(first_failure=first_failure, judge="verifier"), None, Processes())


def test_a_round_of_failures_stops_with_the_first_of_them():
    with pytest.raises(GradingFailed) as stopped:
        grader_that_said("raised on problem 7").check(["error"] * 18 + ["timeout", "wrong"], "of a round")
    message = str(stopped.value)
    assert "failed on 19 of 20 responses of a round (18 error, 1 timeout)" in message
    assert "The first failure: the verifier raised on problem 7" in message


@pytest.mark.parametrize("outcomes", [["error"] * 7, ["error"] * 18 + ["wrong"] * 2, ["wrong"] * 20, []])
def test_few_verdicts_or_some_readable_ones_do_not_stop_a_run(outcomes):
    grader_that_said("raised on problem 7").check(outcomes, "of a round")


def test_the_first_failure_of_any_process_is_told():
    def check(processes):
        first = "hung on problem 3" if processes.index else ""
        grader = SimpleNamespace(first_failure=first, judge="verifier")
        with pytest.raises(GradingFailed, match="the verifier hung on problem 3"):
            ResponseGrader(grader, None, processes).check(["timeout"] * 8, "of a round")

    together(2, check)
