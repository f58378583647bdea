r"""*Char count* has right demonstrations, and pays for the exact count in the last box alone."""

from __future__ import annotations

import re

import pytest

from fr3e_jax.configuration.schema import CharCountConfig, DataConfig
from fr3e_jax.data.char_count_task import CharCountTask
from fr3e_jax.problem import Problem


def make(seed=0, **settings):
    return CharCountTask(DataConfig(task="char_count", seed=seed, char_count=CharCountConfig(**settings)))


@pytest.mark.parametrize("settings", [{}, {"letters": [1, 2]}, {"letters": [30, 30]}])
def test_questions_and_demonstrations_are_right(settings):
    task = make(**settings)
    demonstrations = [task.demonstration(index, 1.0) for index in range(200)]
    for demonstration in demonstrations:
        letter, word = re.fullmatch(r"How many (\w) are there in (.*)\?", demonstration.prompt).groups()
        *lines, box = demonstration.response.split("\n")
        assert "-".join(line[0] for line in lines) == word
        assert lines == [f"{line[0]} {'=' if line[0] == letter else '!='} {letter}" for line in lines]
        assert box == f"\\boxed{{{word.count(letter)}}}"
        assert task.config.letters[0] <= len(lines) <= task.config.letters[1]
        problem = Problem("0", demonstration.prompt, str(word.count(letter)))
        assert task.verifier()(problem, demonstration.response, True).right


def test_problems_are_of_every_length_and_count():
    problems = make().problems("train")[:2000]
    words = [re.sub(r".* in |[-?]", "", problem.prompt) for problem in problems]
    assert {len(word) for word in words} == set(range(5, 21))
    assert {int(problem.gold) for problem in problems} == set(range(1, 21))


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        ("a = a\n\\boxed{12}", "right"),
        ("\\boxed{12}", "right"),
        ("\\boxed{ 12 }", "right"),
        ("\\boxed{3}\nNo: \\boxed{12}.", "right"),  # the last one is the answer
        ("\\boxed{12} 1 \\boxed{3}", "wrong"),
        ("\\boxed{12}\\boxed{3}", "wrong"),  # two answers
        ("\\boxed{12} or \\boxed{11}", "wrong"),
        ("\\boxed{11, 12}", "wrong"),
        ("\\boxed{12.0}", "wrong"),
        ("\\boxed{012}", "wrong"),
        ("\\boxed{+12}", "wrong"),
        ("\\boxed{1 2}", "wrong"),
        ("\\boxed{１２}", "wrong"),
        ("\\boxed{twelve}", "wrong"),
        ("\\boxed{6+6}", "wrong"),
        ("\\boxed{count}", "wrong"),
        ("12", "no_answer"),
        ("", "no_answer"),
        ("\\boxed{}", "no_answer"),
        ("\\boxed{12", "no_answer"),
        ("boxed{12}", "no_answer"),
        ("I do not know.<|im_end|>\\boxed{12}", "no_answer"),  # another turn
    ],
)
def test_the_reward_reads_the_last_box_exactly(response, outcome):
    verdict = make().verifier()(Problem("0", "How many a are there in a-b?", "12"), response, True)
    assert (verdict.outcome, verdict.reward) == (outcome, float(outcome == "right"))
