"""Results of a user's environment: taken as what they are, or refused by name."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

from fr3e_jax.problem import Problem
from fr3e_jax.tools.environment import Episode, EpisodeFault, Step

PROBLEM = Problem("p/0", "1+1=", "2")
Named = namedtuple("Named", "observation reward done info")


def episode(result, first=""):
    class Fixed:
        def reset(self, problem, seed):
            return first

        def step(self, text):
            return result

    return Episode(Fixed, PROBLEM, 0)


@pytest.mark.parametrize(
    ("result", "step"),
    [
        (("go", 0.5, False), Step("go", 0.5, False, None)),
        (("go", 0, False, None), Step("go", 0.0, False, None)),
        (("", 1.0, True, True), Step("", 1.0, True, True)),
        (("", 1.0, True, np.bool_(False)), Step("", 1.0, True, False)),
        (("go", 0.5, False, {}), Step("go", 0.5, False, None)),
        (("", 0.0, True, {"lives": 3}), Step("", 0.0, True, None)),
        (("", 0.0, True, {"is_success": True}), Step("", 0.0, True, None)),
        (Named("", 0.0, True, {"lives": 3}), Step("", 0.0, True, None)),
        (("go", 0.0, False, False, {}), Step("go", 0.0, False, None)),
        (("", 1.0, True, False, {"x": 1}), Step("", 1.0, True, None)),
        (("", 0.0, False, True, {}), Step("", 0.0, True, None)),
        (("", np.float32(1.0), np.bool_(False), np.bool_(True), {}), Step("", 1.0, True, None)),
        ((None, 1.0, True), Step("", 1.0, True, None)),
        ((None, 1.0, True, {"a": 1}), Step("", 1.0, True, None)),
        ((None, 0.0, False, True, {}), Step("", 0.0, True, None)),
        (("", True, 1), Step("", 1.0, True, None)),
    ],
)
def test_a_step_and_gym_s_tuples_are_taken_as_what_they_are(result, step):
    assert episode(result).step("") == step


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (("", 1.0, True, "fail"), "returned 'fail' for right"),
        (("", 1.0, True, 1), "returned 1 for right"),
        (("", 1.0, True, [True]), "returned [True] for right"),
        (Step("", 1.0, True, "no"), "returned 'no' for right"),
        ((None, 0.0, False), "returned the observation None"),
        ((None, 0.0, False, {}), "returned the observation None"),
        (("", 0.0, "no"), "returned 'no' for done"),
        (("", 0.0, None), "returned None for done"),
        (("", 0.0, {}), "returned {} for done"),
        (("", 0.0, False, "no", {}), "returned 'no' for truncated"),
        (("", 0.0, False, {}, {}), "returned {} for truncated"),
        (("", 0.0, False, True, 3), "expected (observation, reward, done)"),
        (("", 0.0, False, False, {}, {}), "expected (observation, reward, done)"),
        (("", 0.0), "expected (observation, reward, done)"),
        (("", 1e308, True), "returned the reward 1e+308"),
        (("", float("nan"), True), "returned the reward nan"),
        (("", "1", True), "returned the reward '1'"),
    ],
)
def test_any_other_result_is_refused_by_name(result, complaint):
    with pytest.raises(EpisodeFault) as fault:
        episode(result).step("")
    assert complaint in str(fault.value) and "in turn 1 of problem p/0" in str(fault.value)


@pytest.mark.parametrize(("first", "text"), [("go", "go"), (None, ""), (("go", {"seed": 3}), "go")])
def test_a_first_observation_may_come_with_gym_s_info(first, text):
    assert episode(("", 0.0, True), first).first == text


@pytest.mark.parametrize("first", [3, ("go",), ("go", 3), (None, {}), ["go"]])
def test_any_other_first_observation_is_refused(first):
    with pytest.raises(EpisodeFault, match="in reset.. of problem p/0: returned .*; expected a text"):
        episode(("", 0.0, True), first)
