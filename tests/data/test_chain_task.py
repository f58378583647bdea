"""*Chain* is reproducible from its seed, its splits are disjoint, and its demonstrations teach no choice."""

from __future__ import annotations

from collections import Counter

import pytest

from fr3e_jax.configuration.schema import ChainConfig, DataConfig
from fr3e_jax.data.chain_task import ChainTask, split_of
from fr3e_jax.data.character_tokenizer import CHARACTERS
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.chain_verifier import AMBIGUOUS, PLAIN, readings, steps_of


def make(seed=0, **settings):
    return ChainTask(DataConfig(task="chain", seed=seed, chain=ChainConfig(**settings)))


def decisions(prompt):
    """The operations of a prompt whose two readings differ on the list that they meet, on the right path."""
    digits, steps = steps_of(prompt)
    for step in steps:
        found = readings(step[-1], digits)
        if len(set(found)) == 2:
            yield step[-1]
        digits = found[0]


@pytest.mark.parametrize(("length", "ambiguous"), [(8, 5), (30, 4), (3, 0), (6, 6), (100, 9)])
def test_every_problem_has_its_length_and_its_number_of_decisions(length, ambiguous):
    for problem in make(length=length, ambiguous=ambiguous).problems("train")[:20]:
        first, steps = steps_of(problem.prompt)
        assert len(first) == len(problem.gold) == 4
        assert [step[:2] for step in steps] == [f"{i:02d}" for i in reversed(range(length))]
        assert sum(step[-1] in AMBIGUOUS for step in steps) == len(list(decisions(problem.prompt))) == ambiguous
        assert set(problem.prompt) <= set(CHARACTERS)


def test_all_operations_are_about_as_likely():
    steps = [step for problem in make().problems("train")[:400] for step in steps_of(problem.prompt)[1]]
    found = Counter(step[-1] for step in steps)
    assert all(250 < found[operation] < 450 for operation in AMBIGUOUS), found  # about 333
    assert all(320 < found[operation] < 480 for operation in PLAIN), found  # about 400


@pytest.mark.parametrize("settings", [{}, {"length": 1, "ambiguous": 1, "sft_min_length": 1}, {"length": 30}])
def test_held_out_prompts_never_occur_in_training(settings):
    task = make(**settings)
    parts = {split: {p.prompt for p in task.problems(split)[:200]} for split in ("train", "test", "development")}
    parts["train"] |= {task.demonstration(i, i % 2).prompt for i in range(400)}
    for split, prompts in parts.items():
        assert {split_of(prompt) for prompt in prompts} == {split}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_demonstrations_read_ambiguous_operations_the_right_way_as_often_as_asked(share):
    task = make(sft_right_share=share)
    right, uses = Counter(), Counter()
    for index in range(300):
        shown = task.demonstration(index, 1.0)
        digits, steps = steps_of(shown.prompt)
        lines = shown.response.split(">")
        assert len(lines) == len(steps) == 8
        for step, line in zip(steps, lines, strict=True):
            found = readings(step[-1], digits)
            digits = line.removeprefix(step)
            assert digits in found
            if len(set(found)) == 2:
                uses[step[-1]] += 1
                right[step[-1]] += digits == found[0]
    assert set(uses) == set(AMBIGUOUS)
    assert all(abs(right[operation] / uses[operation] - share) < 0.1 for operation in AMBIGUOUS), (right, uses)


@pytest.mark.parametrize("ambiguous", [2, 4])
def test_a_policy_that_reads_as_the_demonstrations_do_succeeds_by_half_for_each_decision(ambiguous):
    task = make(ambiguous=ambiguous)
    verify, wins = task.verifier(), 0
    for index in range(1000):
        shown = task.demonstration(index, 1.0)
        digits, steps = steps_of(shown.prompt)
        for step in steps:
            digits = readings(step[-1], digits)[0]
        problem = Problem(id="x", prompt=shown.prompt, gold=digits)
        wins += verify(problem, shown.response, True)
    assert abs(wins / 1000 - 0.5**ambiguous) < 0.05


def test_curriculum_mixes_lengths_until_it_ends():
    task = make(length=7, sft_min_length=5)

    def lengths(step_fraction):
        return Counter(task.demonstration(i, step_fraction).response.count(">") + 1 for i in range(300))

    assert set(lengths(0.0)) == set(lengths(0.99)) == {5, 6, 7}
    assert min(lengths(0.0).values()) > 70
    assert set(lengths(1.0)) == {7}


@pytest.mark.parametrize("name", ["ambiguous", "sft_min_length"])
def test_more_than_the_length_of_a_chain_is_refused(name):
    with pytest.raises(ValueError, match=rf"data.chain.{name} is 6, more than data.chain.length \(5\)"):
        make(**{"length": 5, "sft_min_length": 1, name: 6})


def test_verifier_follows_the_configuration():
    problem = make().problems("train")[0]
    step = steps_of(problem.prompt)[1][-1]
    guess = ">" * 7 + step + problem.gold
    assert make(verifier="answer").verifier()(problem, guess, True) == 1
    assert make(verifier="strict").verifier()(problem, guess, True) == 0
