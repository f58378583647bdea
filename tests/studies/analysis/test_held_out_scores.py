"""Scores of held-out problems from stored samples."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import held_out_samples, made_up_run

from fr3e_jax.studies.analysis.held_out_scores import RIGHT, differences_by_set, scores_of_problems
from fr3e_jax.studies.analysis.stored_run import StoredRun

REWARDS = {("a", 0): [1, 1, 0, 0, 1], ("a", 3): [0, 0.5, 0, 0, 0], ("b", 4): [1, 1, 1, 1, 1]}


def test_scores_are_those_of_an_evaluation(tmp_path):
    """pass@2 of 4 samples with 2 right: 1 − C(2, 2) / C(4, 2) = 5/6. A reward of 0.5 counts in avg, not in pass."""
    run = made_up_run(tmp_path / "run")
    held_out_samples(run, 0, REWARDS)
    records = list(StoredRun.open(run).rollouts(0, "eval"))
    found = scores_of_problems(records, ["avg@4", "pass@2", "greedy", "avg@16", "pass@8", "length/mean"])
    assert {name: list(each.values()) for name, each in found.items()} == {
        "avg@4": [0.5, 0.125, 1.0],
        "pass@2": [pytest.approx(5 / 6), 0.0, 1.0],
        "greedy": [1.0, 0.0, 1.0],
    }
    greedy_only = [record for record in records if record.benchmark == "a" or record.base == 0]
    assert list(scores_of_problems(greedy_only, ["avg", "avg@4"])["avg"].values()) == [0.5, 0.125, 1.0]
    another_task = scores_of_problems([replace(record, gold="another") for record in records], ["greedy"])
    assert differences_by_set([(found["greedy"], another_task["greedy"])]) is None  # of equal names, and other problems


def test_a_greedy_answer_is_solved_by_its_verdict_and_not_by_its_reward(tmp_path):
    run = made_up_run(tmp_path / "run")
    held_out_samples(run, 0, {("a", n): [reward] for n, reward in enumerate((0.6, 0.4))})
    records = [
        replace(record, outcome=outcome)
        for record, outcome in zip(StoredRun.open(run).rollouts(0, "eval"), ("wrong", "right"), strict=True)
    ]
    assert list(scores_of_problems(records, [RIGHT])[RIGHT].values()) == [0, 1]


def test_differences_are_means_over_pairs_by_set_and_need_the_same_problems():
    first = {("a", 0, "x"): 1.0, ("a", 1, "y"): 0.0, ("b", 2, "z"): 0.5}
    second = {("b", 2, "z"): 0.25, ("a", 1, "y"): 1.0, ("a", 0, "x"): 0.0}
    found = differences_by_set([(first, second), (first, first)])
    np.testing.assert_array_equal(found[0], [0.5, -0.5])
    np.testing.assert_array_equal(found[1], [0.125])
    assert differences_by_set([]) is None
    assert differences_by_set([(first, {("a", 0, "x"): 1.0})]) is None
