"""The guard around verifiers: broken cases cost a reward and a count, broken verifiers stop the run."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

from fr3e_jax.data.task import Problem
from fr3e_jax.rewards.exact import exact_match
from fr3e_jax.rewards.verifier import Grader

PROBLEM = Problem(id="train/7", prompt="48/2=", gold="24")


def returning(value):
    return Grader(lambda problem, response, finished: value)


@pytest.mark.parametrize("reward", [0, 1, True, 0.25, np.float32(0.5), np.bool_(True)])
def test_numbers_between_zero_and_one_pass_unchanged(reward):
    graded = returning(reward).grade(PROBLEM, "24", True)
    assert graded == reward
    assert type(graded) is float


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -0.1, 1.5])
def test_numbers_outside_the_range_are_an_error_that_names_the_problem(reward):
    with pytest.raises(ValueError, match=r"returned .* for problem train/7; expected a finite number in \[0, 1\]"):
        returning(reward).grade(PROBLEM, "24", True)


@pytest.mark.parametrize("reward", [None, "1", [1.0]])
def test_other_types_are_an_error_that_names_the_problem(reward):
    with pytest.raises(TypeError, match=r"problem train/7; expected a number in \[0, 1\]: return a float"):
        returning(reward).grade(PROBLEM, "24", True)


def test_a_verifier_that_raises_costs_the_reward_and_is_counted(caplog):
    def fragile(problem, response, finished):
        return 1.0 / (len(response) - 2)

    grader = Grader(fragile)
    with caplog.at_level(logging.WARNING):
        assert [grader.grade(PROBLEM, text, True) for text in ("24", "123", "42")] == [0.0, 1.0, 0.0]
    assert grader.errors == 2
    assert [record.getMessage() for record in caplog.records] == [
        "the verifier raised on problem train/7; its reward is 0"
    ]
    assert "ZeroDivisionError" in caplog.text


def test_an_interrupt_is_not_swallowed():
    def interrupted(problem, response, finished):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Grader(interrupted).grade(PROBLEM, "24", True)


@pytest.mark.parametrize(
    ("response", "finished", "reward"),
    [("24", True, 1), ("24", False, 0), (" 24", True, 0), ("24\n", True, 0), ("24.0", True, 0), ("", True, 0)],
)
def test_exact_match_strips_nothing_and_wants_the_stop_token(response, finished, reward):
    assert exact_match(PROBLEM, response, finished) == reward


def test_rewards_and_task_definitions_import_without_jax():
    code = (
        "import sys, fr3e_jax.rewards.verifier, fr3e_jax.rewards.exact, fr3e_jax.rewards.order, fr3e_jax.data.order\n"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
