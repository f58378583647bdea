"""*Order* is reproducible from its seed, its splits are disjoint, and its demonstrations teach no precedence."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from fr3e_jax.configuration.schema import DataConfig, OrderConfig
from fr3e_jax.data.order_task import OrderTask
from fr3e_jax.rewards.order_verifier import is_valid, reduce_at, valid_reductions


def make(seed=0, **settings):
    return OrderTask(DataConfig(seed=seed, order=OrderConfig(**settings)))


def test_problems_have_the_right_form_and_answer():
    for problem in make().problems("train")[:300]:
        expression = problem.prompt.removesuffix(">")
        assert problem.prompt == expression + ">"
        assert len(expression) == 9
        assert problem.gold == str(eval(expression) % 10)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_lines_of_demonstrations_is_valid(share):
    task = make(sft_valid_share=share, num_operands=7)
    valid = free = 0
    for index in range(300):
        shown = task.demonstration(index, 1.0)
        lines = [shown.prompt[:-1], *shown.response.split(">")]
        for before, after in itertools.pairwise(lines):
            positions = range(1, len(before), 2)
            if all(is_valid(before, position) for position in positions):
                continue  # no operator would be wrong
            free += 1
            valid += after in valid_reductions(before, 10)
    assert free > 1000 and abs(valid / free - share) < 0.06


def test_demonstrations_reduce_one_operator_per_line_whatever_its_precedence():
    task = make()
    positions, broken = Counter(), 0
    for index in range(2000):
        demonstration = task.demonstration(index, 1.0)
        lines = [demonstration.prompt.removesuffix(">"), *demonstration.response.split(">")]
        assert [len(line) for line in lines] == [9, 7, 5, 3, 1]
        for before, after in itertools.pairwise(lines):
            assert after in {reduce_at(before, i, 10) for i in range(1, len(before), 2)}
        first = [i for i in range(1, 9, 2) if reduce_at(lines[0], i, 10) == lines[1]]
        if len(first) == 1:
            positions[first[0]] += 1
            broken += not is_valid(lines[0], first[0])
    assert all(count > 380 for count in positions.values()), positions  # uniform: about 490 each
    assert broken > 500


def test_curriculum_mixes_lengths_until_it_ends():
    task = make(num_operands=6, sft_min_operands=4)

    def operands(step_fraction):
        prompts = [task.demonstration(i, step_fraction).prompt for i in range(600)]
        return Counter(len(prompt) // 2 for prompt in prompts)

    assert set(operands(0.0)) == set(operands(0.99)) == {4, 5, 6}
    assert min(operands(0.0).values()) > 150
    assert set(operands(1.0)) == {6}


def test_verifier_follows_the_configuration():
    problem = make().problems("train")[0]
    guess = ">>>" + problem.gold
    assert make(verifier="answer").verifier()(problem, guess, True) == 1
    assert make(verifier="strict").verifier()(problem, guess, True) == 0
