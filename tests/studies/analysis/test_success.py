"""pass@k against counting by hand."""

from itertools import combinations

import numpy as np
import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.studies.analysis.catalogue import analyse, findings
from fr3e_jax.studies.analysis.success import curve_with_interval, places

RIGHT = {0: [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]], 8: [[0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]}


def samples(right_by_step, greedy=True):
    """Evaluation samples: of each step and problem a greedy answer, always right, and the given samples."""
    return [
        rollout(step, i, base, right, [2, 1], kind="eval")
        for step, problems in right_by_step.items()
        for i, row in enumerate(problems)
        for base, right in enumerate([True, *row] if greedy else row, 0 if greedy else 1)
    ]


def pass_at_k_by_counting(rows, k):
    """Share of the subsets of k samples that hold a right one, mean over problems."""
    return np.mean([np.mean([any(c) for c in combinations(row, k)]) for row in rows])


def test_pass_at_k_is_that_of_all_subsets_without_the_greedy_answer(tmp_path):
    run = made_up_run(tmp_path / "run", samples=samples(RIGHT))
    (figure,) = findings(run, only=["pass_at_k"])
    assert [one.name for one in figure.series] == ["step 0", "step 8"] and figure.log_x
    for one, step in zip(figure.series, (0, 8), strict=True):
        assert list(one.x) == [1, 2, 3, 4]
        assert one.y == pytest.approx([pass_at_k_by_counting(RIGHT[step], k) for k in (1, 2, 3, 4)])


def test_interval_is_that_of_resampled_problems():
    by_problem = np.array([[0.0, 0.2], [1.0, 1.0], [0.5, 0.6]])
    mean, low, high = curve_with_interval(by_problem, seed=3)
    draws = np.random.default_rng(3).integers(0, 3, (1000, 3))
    expected = np.percentile(by_problem[draws].mean(axis=1), [2.5, 97.5], axis=0)
    np.testing.assert_allclose([mean, low, high], [by_problem.mean(axis=0), *expected])


def test_places_of_many_samples_are_few_and_hold_the_powers_of_two():
    assert places(5) == [1, 2, 3, 4, 5]
    assert {1, 2, 4, 256, 512, 1000} <= set(places(1000)) and len(places(1000)) < 60


def test_rollouts_of_training_and_greedy_answers_are_no_samples(tmp_path):
    rollouts = [rollout(1, 0, base, base == 0, [2, 1]) for base in range(4)]
    greedy = [rollout(1, 0, 0, True, [2, 1], kind="eval")]
    found, left_out = analyse([made_up_run(tmp_path / "run", rollouts=rollouts, samples=greedy)], only=["pass_at_k"])
    assert not found and left_out[0].reason.startswith("no evaluation sample but greedy answers")


def test_each_evaluation_set_has_its_own_curve(tmp_path):
    both = [
        rollout(0, p, base, right, [2, 1], kind="eval", benchmark=name, id=f"{name}/{p}/{base}")
        for name, row in (("aime", [0, 1]), ("math", [1, 1]))
        for p in range(2)
        for base, right in enumerate(row, 1)
    ]
    (figure,) = findings(made_up_run(tmp_path / "run", samples=both), only=["pass_at_k"])
    assert {one.name: list(one.y) for one in figure.series} == {"aime, step 0": [0.5, 1.0], "math, step 0": [1.0, 1.0]}
