"""Names of verifiers."""

import pytest

from fr3e_jax.data.task import Problem
from fr3e_jax.rewards.named_verifiers import VERIFIERS, named_verifier


def test_every_name_makes_a_verifier():
    expected = "math gsm8k aime minerva olympiad gaokao college_math multiple_choice code exact".split()
    assert sorted(VERIFIERS) == sorted(expected)
    for name in VERIFIERS:
        assert callable(named_verifier(name))
        assert callable(named_verifier(name, "answer_line"))


def test_extraction_reaches_the_verifier():
    problem = Problem("1", "?", "4")
    assert named_verifier("math", "answer_line")(problem, "Answer: 4", True).outcome == "right"
    assert named_verifier("math", "boxed")(problem, "Answer: 4", True).outcome == "no_answer"


def test_exact_compares_the_whole_response():
    assert named_verifier("exact")(Problem("1", "?", "4"), "4", True) == 1.0
    assert named_verifier("exact")(Problem("1", "?", "4"), r"\boxed{4}", True) == 0.0


def test_an_unknown_name_is_an_error_with_a_suggestion():
    with pytest.raises(ValueError, match="no verifier 'gms8k'; expected one of .*; did you mean 'gsm8k'"):
        named_verifier("gms8k")
    with pytest.raises(ValueError, match="no extraction 'last_number'; expected one of boxed"):
        named_verifier("math", "last_number")
