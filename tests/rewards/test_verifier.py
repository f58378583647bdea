"""What may come back through the interface of a verifier, and the strictest verifier."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.data.task import Problem
from fr3e_jax.rewards.verifier import checked_verdict, exact_match

PROBLEM = Problem(id="train/7", prompt="48/2=", gold="24")


@pytest.mark.parametrize("reward", [0, 1, True, 0.25, np.float32(0.5), np.bool_(True)])
def test_numbers_between_zero_and_one_pass_unchanged(reward):
    verdict = checked_verdict(reward, None, "train/7")
    assert verdict.reward == reward
    assert type(verdict.reward) is float
    assert verdict.outcome == ("right" if reward == 1 else "wrong")


def test_an_outcome_is_kept_where_the_verifier_gives_one():
    assert checked_verdict(0.0, "refused", "train/7").outcome == "refused"
    with pytest.raises(ValueError, match=r"outcome 'nonsense' for problem train/7; expected one of .*'right'"):
        checked_verdict(0.0, "nonsense", "train/7")


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -0.1, 1.5])
def test_numbers_outside_the_range_are_an_error_that_names_the_problem(reward):
    with pytest.raises(ValueError, match=r"returned .* for problem train/7; expected a finite number in \[0, 1\]"):
        checked_verdict(reward, None, "train/7")


@pytest.mark.parametrize("reward", [None, "1", [1.0]])
def test_other_types_are_an_error_that_names_the_problem(reward):
    with pytest.raises(TypeError, match=r"problem train/7; expected a number in \[0, 1\]: return a float"):
        checked_verdict(reward, None, "train/7")


@pytest.mark.parametrize(
    ("response", "finished", "reward"),
    [("24", True, 1), ("24", False, 0), (" 24", True, 0), ("24\n", True, 0), ("24.0", True, 0), ("", True, 0)],
)
def test_exact_match_strips_nothing_and_wants_the_stop_token(response, finished, reward):
    assert exact_match(PROBLEM, response, finished) == reward
