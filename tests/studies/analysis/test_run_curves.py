"""Curves of a run over what it had spent, against numbers by hand."""

import math

import numpy as np
import pytest
from made_up_runs import spending

from fr3e_jax.studies.analysis.run_curves import Curve, first_reach, metric_label, on_grid, run_curves


def records(training, evaluations=None):
    rows = [{"step": step, "kind": "train"} | metrics for step, metrics in training.items()]
    return rows + [{"step": step, "kind": "eval"} | metrics for step, metrics in (evaluations or {}).items()]


@pytest.fixture
def curves():
    training = {
        1: spending(100, loss=40, cpu=7.0) | {"reward/mean": 0.5},
        2: spending(0, loss=60, cpu=8.0),
        3: spending(300, loss=200, cpu=9.5) | {"reward/mean": math.nan},
        4: spending(100, loss=100, cpu=11.0) | {"reward/mean": 0.75},
    }
    return run_curves(records(training, {0: {"greedy": 0.25}, 2: {"greedy": 0.5}, 4: {"greedy": 0.4}}))


def test_an_evaluation_stands_at_the_total_spent_up_to_its_step(curves):
    places = {axis: curves.points("greedy", axis)[0].tolist() for axis in curves.spent}
    assert places == {
        "step": [0, 2, 4],
        "sampled_tokens": [0, 100, 500],
        "trained_positions": [0, 200, 800],
        "updates": [0, 4, 8],
        "cpu_seconds": [0, 8.0, 11.0],
        "wall_seconds": [0, 4.0, 5.5],
    }
    assert curves.points("greedy", "updates")[1].tolist() == [0.25, 0.5, 0.4]
    assert curves.totals["sampled_tokens"] == 500 and curves.last_step == 4


def test_of_two_steps_at_one_place_the_later_counts(curves):
    x, y = curves.points("wasted_tokens", "sampled_tokens")
    assert x.tolist() == [100, 400, 500]
    np.testing.assert_allclose(y, [1 - 100 / 100, 1 - 300 / 400, 1 - 400 / 500])


def test_wasted_tokens_are_those_in_no_loss_each_counted_once_in_several_epochs():
    once = run_curves(records({1: spending(100, loss=40), 2: spending(100, loss=80)}))
    twice = run_curves(records({1: spending(100, loss=80), 2: spending(100, loss=160)}), epochs=2)
    for found in (once, twice):
        np.testing.assert_allclose(found.training["wasted_tokens"].values, [0.6, 0.4])
        assert found.final("wasted_tokens") == pytest.approx(0.4)
    replayed = run_curves(records({1: spending(100, loss=120) | {"replay/trained_tokens": 40}}))
    assert replayed.final("wasted_tokens") == pytest.approx(0.2), "of those that were sampled in the run's steps"


def test_values_that_are_not_finite_and_steps_without_a_metric_are_passed_over(curves):
    assert curves.training["reward/mean"].steps.tolist() == [1, 4]
    assert Curve.of({2: None, 1: "text", 0: math.inf}).steps.tolist() == []


def test_the_final_value_of_training_is_the_mean_of_the_last_tenth_of_the_steps():
    found = run_curves(records({s: spending(1) | {"entropy/mean": float(s)} for s in range(1, 22)}))
    assert found.final("entropy/mean") == np.mean([19, 20, 21])
    assert found.final("absent") is None


def test_shares_of_prompts_are_of_each_step_and_of_the_whole_run():
    counts = [(1, 3, 4), (0, 0, 2), (0, 0, 0)]
    names = ("all_right", "all_wrong", "mixed")
    rows = {s: {f"base_groups/{n}": c for n, c in zip(names, row, strict=True)} for s, row in enumerate(counts, 1)}
    found = run_curves(records(rows))
    assert found.training["all_wrong"].values.tolist() == [3 / 8, 0.0]
    assert [found.final(name) for name in names] == [0.1, 0.3, 0.6]


def test_an_axis_that_a_step_lacks_is_absent():
    found = run_curves(records({1: spending(5), 2: {"reward/mean": 1.0}}))
    assert set(found.spent) == {"step"} and found.points("reward/mean", "sampled_tokens")[0].size == 0
    assert run_curves(records({}, {0: {"greedy": 0.5}})).points("greedy", "step")[1].tolist() == [0.5]


def test_a_grid_is_interpolated_and_never_extrapolated():
    values = on_grid(np.array([1.0, 3.0]), np.array([10.0, 20.0]), np.array([0.9, 1.0, 2.0, 3.0, 3.1]))
    np.testing.assert_array_equal(values, [np.nan, 10, 15, 20, np.nan])
    assert np.isnan(on_grid(np.zeros(0), np.zeros(0), np.ones(2))).all()


@pytest.mark.parametrize(
    ("score", "place"), [(0.1, 0.0), (0.2, 0.0), (0.3, 50.0), (0.4, 100.0), (0.45, 275.0), (0.5, 300.0), (0.6, None)]
)
def test_a_score_is_reached_on_the_line_between_evaluations(score, place):
    """Scores 0.2, 0.4, 0.3, 0.5 at 0, 100, 200, 300: 0.45 lies three quarters between 200 and 300."""
    x, y = np.array([0.0, 100, 200, 300]), np.array([0.2, 0.4, 0.3, 0.5])
    assert first_reach(x, y, score) == (None if place is None else pytest.approx(place))


def test_held_out_metrics_that_are_no_scores_have_names_of_their_own():
    found = run_curves(records({1: {"length/mean": 3.0}}, {0: {"length/mean": 9.0, "x/pass@2": 0.5}}))
    assert (
        found.final("length/mean") == 3.0 and found.final("eval/length/mean") == 9.0 and found.final("x/pass@2") == 0.5
    )
    assert metric_label("aime24/avg@16") == "aime24/avg@16, held-out" and metric_label("clip/low") == "clip/low"
