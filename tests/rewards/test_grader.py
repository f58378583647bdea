"""The guard around verifiers: broken cases cost a reward and a count, broken verifiers stop the run."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from pathlib import Path
from types import MappingProxyType

import pytest

from fr3e_jax.configuration.schema import RewardsConfig
from fr3e_jax.data.task import Problem
from fr3e_jax.rewards.grader import Grader, VerifierError
from fr3e_jax.rewards.user import user_verifier
from fr3e_jax.verdict import Job, Verdict

PROBLEM = Problem(id="train/7", prompt="48/2=", gold="24", extra=MappingProxyType({"bonus": "24"}))
FUNCTIONS = str(Path(__file__).with_name("grading_functions.py"))
SETTINGS = RewardsConfig(workers=2, deadline_seconds=20.0)


def job_verifier(function: str, *before: object, cacheable: bool = True, deadline: float | None = None):
    """A verifier whose responses are graded by a function in a worker."""
    name = f"{FUNCTIONS}:{function}"
    return lambda problem, response, finished: Job(name, (*before, response), deadline, cacheable)


def grade(grader: Grader, problem: Problem, response: str, finished: bool) -> float:
    return grader.submit(problem, response, finished).result().reward


@pytest.fixture
def grader_of():
    made = []

    def make(verifier, settings=SETTINGS) -> Grader:
        made.append(Grader(verifier, settings))
        return made[-1]

    yield make
    for grader in made:
        grader.close()


def test_a_verifier_that_answers_at_once_needs_no_process(grader_of):
    grader = grader_of(lambda problem, response, finished: 0.25)
    pending = grader.submit(PROBLEM, "24", True)
    assert pending.done()
    assert pending.result() == Verdict(0.25, "wrong")
    assert grade(grader, PROBLEM, "24", True) == 0.25
    assert grader._pool is None


def test_outcomes_are_counted_since_they_were_last_taken(grader_of):
    verdicts = {"24": 1.0, "25": 0.0, "?": Verdict(0.0, "no_answer")}
    grader = grader_of(lambda problem, response, finished: verdicts[response])
    for response in ("24", "24", "25", "?"):
        grade(grader, PROBLEM, response, True)
    assert grader.take_outcomes() == Counter(right=2, wrong=1, no_answer=1)
    assert grader.take_outcomes() == Counter()


def test_a_verifier_that_raises_costs_the_reward_and_is_counted(grader_of, caplog):
    def fragile(problem, response, finished):
        return 1.0 / (len(response) - 2)

    grader = grader_of(fragile)
    with caplog.at_level(logging.WARNING):
        rewards = [grade(grader, PROBLEM, text, True) for text in ("24", "123", "42", "24", "24")]
    assert rewards == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert grader.take_outcomes() == Counter(error=4, right=1)
    messages = [record.getMessage().splitlines() for record in caplog.records]
    first_lines = ["the verifier raised on problem train/7; its reward is 0:"] * 3
    assert [lines[0] for lines in messages] == first_lines, "only the first few are shown"
    assert all(lines[-1] == "ZeroDivisionError: float division by zero" for lines in messages)


def test_an_interrupt_is_not_swallowed(grader_of):
    def interrupted(problem, response, finished):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade(grader_of(interrupted), PROBLEM, "24", True)


@pytest.mark.parametrize(("returned", "error"), [(None, TypeError), ("1", TypeError), (1.5, ValueError)])
def test_a_verifier_that_returns_no_number_between_zero_and_one_stops_the_run(grader_of, returned, error):
    with pytest.raises(error, match="problem train/7"):
        grade(grader_of(lambda problem, response, finished: returned), PROBLEM, "24", True)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("grade.__name__.upper", TypeError, r"returned 'GRADE' for problem train/7; expected a number in \[0, 1\]"),
        ("os.getppid", ValueError, r"returned \d+.* for problem train/7; expected a finite number"),
    ],
)
def test_a_job_that_returns_no_number_between_zero_and_one_stops_the_run(grader_of, function, error, message):
    with pytest.raises(error, match=message):
        grade(grader_of(lambda p, r, f: Job(f"{FUNCTIONS}:{function}", ())), PROBLEM, "24", True)


def test_jobs_are_graded_while_the_caller_goes_on(grader_of):
    grader = grader_of(job_verifier("grade", "24"))
    pending = [grader.submit(PROBLEM, response, True) for response in ("24", "25", "24")]
    assert [p.result() for p in pending] == [Verdict(1.0, "right"), Verdict(0.0, "wrong"), Verdict(1.0, "right")]
    assert all(p.done() for p in pending)
    assert grader.take_outcomes() == Counter(right=2, wrong=1)


def test_submitting_does_not_wait_for_a_hanging_worker(grader_of, monkeypatch):
    monkeypatch.setattr("fr3e_jax.rewards.pool.WALL_CLOCK_FACTOR", 2.0)
    grader = grader_of(job_verifier("behave"), RewardsConfig(workers=1, deadline_seconds=1.0))
    hanging = grader.submit(PROBLEM, "sleep", True)
    after = grader.submit(PROBLEM, "well", True)
    assert not hanging.done()
    assert (hanging.result().outcome, after.result().outcome) == ("timeout", "right")


def test_equal_jobs_run_once_and_are_remembered(grader_of, tmp_path):
    notes = tmp_path / "notes"
    grader = grader_of(job_verifier("note", str(notes)))
    pending = [grader.submit(PROBLEM, response, True) for response in "aabab"]
    assert {p.result().outcome for p in pending} == {"right"}
    assert grade(grader, PROBLEM, "a", True) == 1.0
    assert len(notes.read_text().split()) == 2
    assert grader.take_outcomes() == Counter(right=6)


def test_long_answers_are_told_apart_by_hashes_and_not_kept(grader_of, tmp_path):
    notes = tmp_path / "notes"
    grader = grader_of(job_verifier("note", str(notes)))
    long = "x" * 100_000
    for response in (long + "a", long + "b", long + "a", long + "b"):
        assert grade(grader, PROBLEM, response, True) == 1.0
    assert len(notes.read_text().split()) == 2
    assert sum(len(argument) for _, arguments in grader._cache for argument in arguments) < 1000


def test_jobs_that_are_not_cacheable_run_each_time(grader_of, tmp_path):
    notes = tmp_path / "notes"
    grader = grader_of(job_verifier("note", str(notes), cacheable=False))
    for pending in [grader.submit(PROBLEM, "a", True) for _ in range(3)]:
        pending.result()
    assert len(notes.read_text().split()) == 3


def test_the_oldest_verdicts_are_forgotten_first(grader_of, tmp_path, monkeypatch):
    monkeypatch.setattr("fr3e_jax.rewards.grader.VERDICTS_REMEMBERED", 2)
    notes = tmp_path / "notes"
    grader = grader_of(job_verifier("note", str(notes)), RewardsConfig(workers=1))
    for response in "abacab":  # b is the oldest when c comes, as a was used again
        grade(grader, PROBLEM, response, True)
    assert len(notes.read_text().split()) == 4


def test_a_time_out_is_remembered_after_the_second_time(grader_of, tmp_path):
    notes = tmp_path / "notes"
    verifier = lambda p, r, f: Job(f"{FUNCTIONS}:hang_once", (str(notes),), 0.3)
    grader = grader_of(verifier)
    outcomes = [grader.submit(PROBLEM, "a", True).result().outcome for _ in range(4)]
    assert outcomes == ["timeout"] * 4
    assert len(notes.read_text().split()) == 2


def test_each_failure_in_a_worker_is_counted_as_its_outcome(grader_of, caplog):
    grader = grader_of(job_verifier("behave", deadline=0.5))
    for manner in ("spin", "exit", "raise", "well"):
        grade(grader, PROBLEM, manner, True)
    assert grader.take_outcomes() == Counter(timeout=1, worker_died=1, error=1, right=1)
    assert "raised on problem train/7; its reward is 0:" in caplog.text
    assert "no such answer" in caplog.text


def test_a_function_that_no_worker_can_run_stops_the_run(grader_of):
    with pytest.raises(VerifierError, match="gives 0.0 for its canary"):
        grade(grader_of(job_verifier("always_wrong")), PROBLEM, "4", True)


def test_a_grader_can_be_used_again_after_it_was_closed(grader_of):
    grader = grader_of(job_verifier("grade", "24"))
    with grader:
        assert grade(grader, PROBLEM, "24", True) == 1.0
    grader.close()
    assert grade(grader, PROBLEM, "25", True) == 0.0


def test_a_forgotten_grader_ends_its_processes():
    grader = Grader(job_verifier("grade", "24"), SETTINGS)
    grade(grader, PROBLEM, "24", True)
    thread = grader._pool._thread
    del grader
    gc.collect()
    end = time.monotonic() + 60
    while thread.is_alive():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_user_s_verifier_runs_in_a_worker(grader_of, monkeypatch):
    monkeypatch.setattr("fr3e_jax.rewards.pool.WALL_CLOCK_FACTOR", 2.0)
    settings = RewardsConfig(workers=2, deadline_seconds=1.0)
    grader = grader_of(user_verifier(f"{FUNCTIONS}:own_verifier"), settings)
    assert [grade(grader, PROBLEM, response, True) for response in ("24", "25")] == [1.0, 0.0]
    assert grader.submit(PROBLEM, "hang", True).result() == Verdict(0.0, "timeout")


def test_a_user_s_verifier_that_reads_a_missing_key_gets_the_outcome_error(grader_of):
    grader = grader_of(user_verifier(f"{FUNCTIONS}:own_verifier"))
    assert grader.submit(Problem("p", "q", "4"), "4", True).result() == Verdict(0.0, "error")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def verify(problem, response, finished):\n    return 1.0\n\n1 / 0\n",
            r"^no worker can run the verifier PATH:verify: ZeroDivisionError: division by zero \(PATH, line 4\)$",
        ),
        ("def verify(problem, response, finished)\n    0\n", r"verify: SyntaxError: expected ':' \(mine.py, line 1\)$"),
        ("", "verify: AttributeError: PATH defines no verify$"),
        ("verify = 7\n", r"mine.py:verify is 7; expected a function of \(problem, response, finished"),
    ],
)
def test_a_user_s_verifier_that_cannot_be_loaded_is_refused_with_the_error_and_its_place(tmp_path, source, message):
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(ValueError, match=message.replace("PATH", str(path))):
        Grader(user_verifier(f"{path}:verify"), SETTINGS)


@pytest.mark.parametrize("spec", ["mine", "mine.py:", ":verify", "mine.py:not a name"])
def test_a_spec_without_file_and_function_is_refused(spec):
    with pytest.raises(ValueError, match=r"data.verifier is .*; expected FILE.py:NAME or package.module:NAME"):
        user_verifier(spec)


def test_a_missing_file_is_named_in_the_error():
    with pytest.raises(
        FileNotFoundError, match=r"data.verifier names the file nowhere/mine.py, but /.* does not exist"
    ):
        user_verifier("nowhere/mine.py:verify")


@pytest.mark.parametrize("spec", ["", "exact"])
def test_a_name_of_a_table_s_verifier_is_no_user_s(spec):
    assert user_verifier(spec) is None


def test_a_time_out_is_logged_with_the_problem_s_id(caplog):
    settings = RewardsConfig(workers=1, deadline_seconds=0.2)
    job = Job("tests.rewards.grading_functions:behave", ("spin",))
    with Grader(lambda *_: job, settings) as grader:
        assert grader.submit(Problem("slow/7", "", ""), "x", True).result().outcome == "timeout"
    assert "not done at its deadline" in caplog.text and "slow/7" in caplog.text


def test_the_deadline_of_a_job_does_not_count_the_import_of_its_verifier(tmp_path, grader_of):
    (tmp_path / "slow.py").write_text(
        "import time\nend = time.process_time() + 1.5\nwhile time.process_time() < end:\n    pass\n"
        "def verify(problem, response, finished):\n    return 1.0\n"
    )
    settings = RewardsConfig(deadline_seconds=0.3, workers=1)
    grader = grader_of(user_verifier(f"{tmp_path / 'slow.py'}:verify"), settings)
    problem = Problem(id="p", prompt="", gold="")
    assert [grader.submit(problem, str(n), True).result().outcome for n in range(3)] == ["right"] * 3


def test_a_long_error_with_control_characters_is_shown_short_and_visibly(grader_of, caplog):
    def loud(problem, response, finished):
        raise ValueError("\x1b[31m" + "x" * 10_000_000)

    grader = grader_of(loud)
    grader.submit(Problem(id="p", prompt="", gold=""), "", True)
    (record,) = caplog.records
    assert "\\x1b[31m" in record.message and "\x1b" not in record.message
    assert len(record.message) < 3000 and grader.first_failure in record.message
