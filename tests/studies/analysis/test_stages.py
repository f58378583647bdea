"""The change point of two lines, against NumPy's own fits."""

import numpy as np
import pytest
from analysed_runs import made_up_run

from fr3e_jax.studies.analysis.catalogue import analyse, findings
from fr3e_jax.studies.analysis.stages import two_segments

STEPS = list(range(1, 41))
KNEE = [min(0.02 * step, 0.3) for step in STEPS]  # bends at step 15


def noisy(values, seed=0):
    return [
        value + 0.005 * noise for value, noise in zip(values, np.random.default_rng(seed).normal(size=40), strict=True)
    ]


def test_the_border_and_lines_are_those_of_the_least_squared_error():
    y = noisy(KNEE)
    errors = {}
    for i in range(5, 36):
        errors[i] = sum(np.polyfit(STEPS[part], y[part], 1, full=True)[1][0] for part in (slice(i), slice(i, None)))
    best = min(errors, key=errors.get)
    stages = two_segments(STEPS, y)
    assert stages.change == STEPS[best] and abs(best - 15) <= 2 and stages.flattens
    assert stages.first == pytest.approx(np.polyfit(STEPS[:best], y[:best], 1)[::-1])
    assert stages.second == pytest.approx(np.polyfit(STEPS[best:], y[best:], 1)[::-1])


def test_a_straight_curve_has_no_stages_and_a_steeper_end_is_no_plateau():
    assert not two_segments(STEPS, noisy([0.01 * step for step in STEPS])).better
    late = two_segments(STEPS, noisy([0.02 * max(0, step - 20) for step in STEPS]))
    assert late.better and not late.flattens
    assert not two_segments(STEPS, [0.5] * 40).better


def test_figure_names_the_border_and_draws_both_lines(tmp_path):
    metrics = [(step, {"reward/mean": y, "entropy/mean": 1.0}) for step, y in zip(STEPS, noisy(KNEE), strict=True)]
    run = made_up_run(tmp_path / "run", metrics=metrics)
    (figure,) = findings(run, only=["stages_of_reward"])
    stages = two_segments(STEPS, noisy(KNEE))
    assert f"rising stage to step {stages.change:g}" in figure.note
    _, first, second = figure.series
    assert list(first.x) + list(second.x) == STEPS and second.x[0] == stages.change
    assert first.y[0] == pytest.approx(stages.first[0] + stages.first[1] * STEPS[0])


def test_a_short_run_is_left_out_with_the_reason(tmp_path):
    run = made_up_run(tmp_path / "run", metrics=[(step, {"reward/mean": 0.5}) for step in (1, 2)])
    found, (left_out,) = analyse([run], only=["stages_of_reward"])
    assert not found and left_out.reason == "2 steps; needs 10"
