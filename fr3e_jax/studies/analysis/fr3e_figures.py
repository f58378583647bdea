"""The figures by which FR3E is judged that need rollouts: advantages, and reward by problem, both by step.

Its curves of metrics (entropy, length, success groups) are charts of every page and of ``fr3e compare``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, HeatMap, Series, finite
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import by_step, problem_of

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
AVERAGED = 10  # steps of the moving average of advantages
MOST_PROBLEMS = 64  # lines of the heat map


def moving_average(values: Sequence[float], width: int = AVERAGED) -> list[float]:
    """Mean of each value and the ``width`` - 1 before it, of fewer at the beginning."""
    return [float(np.mean(values[max(0, i + 1 - width) : i + 1])) for i in range(len(values))]


@analysis("training rollouts", "FR3E, figure 7")
def advantages_over_steps(material: Material) -> Figure:
    """Distribution of the advantages of the trained rollouts at each step, and the moving average.

    The paper compares the moving averages with E[A] = 0; it does not say how many steps they cover.
    """
    if not material.run.has_advantages:
        raise NothingToShow("the update makes the advantages, and stored ones are of before")
    responses = material.training
    advantages = responses.column(lambda r: math.nan if r.advantage is None else r.advantage, float)
    steps, (low, lower, median, upper, high), means = by_step(responses.step, advantages, QUANTILES)
    if not steps:
        raise NothingToShow("no rollout has an advantage")
    return Figure(
        title="Advantages over training",
        y_label="advantage",
        series=[
            Series(f"mean of {AVERAGED} steps", steps, moving_average(means)),
            Series("quartiles about the median", steps, median, lower, upper),
            Series("5 % to 95 %", steps, median, low, high),
        ],
        note=f"stored advantages, one for each trained rollout; {responses.note}",
    )


@analysis("samples", "FR3E, figure 6")
def reward_by_problem(material: Material) -> HeatMap:
    """Share of right samples of each problem at each evaluation, hardest problem first."""
    responses = material.evaluation
    mask = responses.graded & responses.column(lambda r: r.base > 0)
    steps = [int(step) for step in np.unique(responses.step[mask])]
    problems, indices = np.unique(responses.column(problem_of, str)[mask], return_inverse=True)
    columns = np.searchsorted(steps, responses.step[mask])
    cell = indices * len(steps) + columns
    count = np.bincount(cell, minlength=len(problems) * len(steps)).reshape(len(problems), -1)
    right = np.bincount(cell, weights=responses.right[mask], minlength=count.size).reshape(count.shape)
    often = (count > 0).sum(axis=1) > 1
    if len(steps) < 2 or not often.any():
        raise NothingToShow("no problem was sampled at two steps")
    share = np.divide(right, count, out=np.full(right.shape, math.nan), where=count > 0)
    drawn = np.flatnonzero(often)
    if len(drawn) > MOST_PROBLEMS:
        drawn = np.sort(np.random.default_rng(material.seed).choice(drawn, MOST_PROBLEMS, replace=False))
    order = drawn[np.argsort(np.nanmean(share[drawn], axis=1), kind="stable")]
    return HeatMap(
        title="Success by problem and step",
        x_label="training step",
        y_label="problem",
        columns=steps,
        lines=[str(problems[i]) for i in order],
        values=[[finite(value) for value in share[i]] for i in order],
        unit="share of right samples",
        note=f"{len(order)} of {int(often.sum())} problems, hardest first; {responses.note}",
    )
