"""FR3E's figures against rollouts as they were written."""

import numpy as np
import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.fr3e_figures import moving_average


def test_advantages_are_quantiles_of_the_trained_rollouts(tmp_path):
    values = {step: np.random.default_rng(step).normal(size=9).astype(np.float32) for step in (1, 2)}
    rollouts = [rollout(s, 0, b, 1, [1], advantage=float(v)) for s, own in values.items() for b, v in enumerate(own)]
    rollouts.append(rollout(2, 1, 0, 1, [1]))  # not trained
    (figure,) = findings(made_up_run(tmp_path / "run", rollouts=rollouts), only=["advantages_over_steps"])
    average, quartiles, outer = figure.series
    for i, own in enumerate(values.values()):
        low, q1, median, q3, high = np.quantile(own.astype(np.float64), [0.05, 0.25, 0.5, 0.75, 0.95])
        assert (quartiles.low[i], quartiles.y[i], quartiles.high[i]) == pytest.approx((q1, median, q3))
        assert (outer.low[i], outer.high[i]) == pytest.approx((low, high))
    means = [own.mean(dtype=np.float64) for own in values.values()]
    assert list(average.y) == pytest.approx([means[0], np.mean(means)])
    assert moving_average([1.0, 2.0, 6.0], width=2) == [1.0, 1.5, 4.0]


def test_heat_map_has_the_share_of_right_samples_and_the_hardest_problem_first(tmp_path):
    table = {0: [[1, 1], [0, 0]], 5: [[1, 0], [0, 1]]}
    samples = [
        rollout(step, p, base, right, [1], kind="eval")
        for step, problems in table.items()
        for p, row in enumerate(problems)
        for base, right in enumerate([False, *row])
    ]
    (heat,) = findings(made_up_run(tmp_path / "run", samples=samples), only=["reward_by_problem"])
    assert list(heat.columns) == [0, 5] and list(heat.lines) == ["p/1", "p/0"]
    assert [list(line) for line in heat.values] == [[0.0, 0.5], [1.0, 0.5]]
