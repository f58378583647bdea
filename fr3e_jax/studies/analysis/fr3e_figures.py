"""The figures by which FR3E is judged: entropy, success groups, advantages, reward by problem, length, all by step.

Each can be laid over those of a baseline run (`overlaid` in `catalogue.py`), as the paper does with GRPO++.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, HeatMap, Number, Series
from fr3e_jax.studies.analysis.material import Material, NothingToShow

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
AVERAGED = 10  # steps of the moving average of advantages
MOST_PROBLEMS = 64  # lines of the heat map
_STEP = "training step"


def number(value: float) -> Number:
    """A float for a figure: None where it is not finite."""
    return float(value) if math.isfinite(value) else None


def metric_lines(material: Material, names: dict[str, str]) -> list[Series]:
    """A line for each metric that the run has written; ``names``: metric to name of its line.

    Raises:
      NothingToShow: it has written none.
    """
    lines = []
    for metric, name in names.items():
        try:
            steps, values = material.curve(metric)
        except NothingToShow:
            continue
        lines.append(Series(name, steps, [number(value) for value in values]))
    if not lines:
        raise NothingToShow(f"no metric {' or '.join(names)}")
    return lines


def entropy_over_steps(material: Material) -> Figure:
    """Mean entropy of the sampled tokens at each step. (FR3E, figure 3, top.)"""
    return Figure(
        name="entropy_over_steps",
        title="Entropy over training",
        kind="lines",
        x_label=_STEP,
        y_label="entropy (nats)",
        series=metric_lines(material, {"entropy/mean": "base rollouts", "entropy/trained": "trained tokens"}),
        source="FR3E, figure 3, top",
        note="metrics of the run; entropy over the full vocabulary",
    )


def reward_over_steps(material: Material) -> Figure:
    """Mean reward of the base rollouts and of those from states. (Vanlioglu 2025, figures 1 and 3.)"""
    return Figure(
        name="reward_over_steps",
        title="Reward over training",
        kind="lines",
        x_label=_STEP,
        y_label="mean reward",
        series=metric_lines(material, {"reward/mean": "base rollouts", "explore/reward": "rollouts from states"}),
        source="Vanlioglu 2025, figures 1 and 3",
        note="metrics of the run",
    )


def length_over_steps(material: Material) -> Figure:
    """Mean response length. (FR3E, figure 4; Vanlioglu 2025, figures 2 and 4.)"""
    return Figure(
        name="length_over_steps",
        title="Response length over training",
        kind="lines",
        x_label=_STEP,
        y_label="length (tokens)",
        series=metric_lines(
            material, {"length/mean": "base rollouts", "explore/length": "rollouts from states, own part"}
        ),
        source="FR3E, figure 4; Vanlioglu 2025, figures 2 and 4",
        note="metrics of the run",
    )


def all_right_all_wrong(material: Material) -> Figure:
    """Groups whose rollouts are all right or all wrong, of prompts and of states. (FR3E, figure 5.)

    The paper counts them in the explore phase: the groups of states. Runs without states have those of prompts alone.
    """
    names = {}
    for kind, named in (("state_groups", "states"), ("base_groups", "prompts")):
        for outcome in ("all_right", "all_wrong", "mixed"):
            names[f"{kind}/{outcome}"] = f"{outcome.replace('_', ' ')}, {named}"
    return Figure(
        name="all_right_all_wrong",
        title="All-Right and All-Wrong groups",
        kind="lines",
        x_label=_STEP,
        y_label="groups",
        series=metric_lines(material, names),
        source="FR3E, figure 5",
        note="metrics of the run; a group is the rollouts of one prompt or of one state",
    )


def quantiles_by_step(steps: np.ndarray, values: np.ndarray) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Of finite ``values`` ``[R]`` at ``steps`` ``[R]``: the steps S, quantiles ``[S, 5]`` and means ``[S]``."""
    known = np.isfinite(values)
    found = [int(step) for step in np.unique(steps[known])]
    rows = [values[known & (steps == step)] for step in found]
    quantiles = np.array([np.quantile(row, QUANTILES) for row in rows]).reshape(len(rows), len(QUANTILES))
    return found, quantiles, np.array([row.mean() for row in rows])


def moving_average(values: Sequence[float], width: int = AVERAGED) -> list[float]:
    """Mean of each value and the ``width`` - 1 before it, of fewer at the beginning."""
    return [float(np.mean(values[max(0, i + 1 - width) : i + 1])) for i in range(len(values))]


def advantages_over_steps(material: Material) -> Figure:
    """Distribution of the advantages of the trained rollouts at each step, and the moving average. (FR3E, figure 7.)

    The paper compares the moving averages with E[A] = 0; it does not say how many steps they cover.
    """
    responses = material.training
    steps, quantiles, means = quantiles_by_step(responses.step, responses.advantage)
    if not steps:
        raise NothingToShow("no rollout has an advantage")
    names = {1: "quartiles about the median", 0: "5 % to 95 %"}
    bands = [
        Series(name, steps, quantiles[:, 2].tolist(), quantiles[:, i].tolist(), quantiles[:, 4 - i].tolist())
        for i, name in names.items()
    ]
    average = Series(f"mean of {AVERAGED} steps", steps, moving_average(means.tolist()))
    return Figure(
        name="advantages_over_steps",
        title="Advantages over training",
        kind="lines",
        x_label=_STEP,
        y_label="advantage",
        series=[average, *bands],
        source="FR3E, figure 7",
        note=f"stored advantages, one for each trained rollout; {responses.note}",
    )


def reward_by_problem(material: Material) -> HeatMap:
    """Share of right samples of each problem at each step, hardest problem first. (FR3E, figure 6.)

    Problems of the evaluations; without their samples, problems that training drew at two steps or more.
    """
    responses, origin = material.sampled_problems
    evaluated = origin.startswith("evaluation")
    mask = responses.graded & (responses.base > 0 if evaluated else np.array([k == "base" for k in responses.kind]))
    steps = [int(step) for step in np.unique(responses.step[mask])]
    problems, indices = np.unique(np.asarray(responses.problem)[mask], return_inverse=True)
    columns = np.searchsorted(steps, responses.step[mask])
    place = indices * len(steps) + columns
    count = np.bincount(place, minlength=len(problems) * len(steps)).reshape(len(problems), -1)
    right = np.bincount(place, weights=responses.right[mask], minlength=count.size).reshape(count.shape)
    often = (count > 0).sum(axis=1) > 1
    if len(steps) < 2 or not often.any():
        raise NothingToShow("no problem was sampled at two steps")
    share = np.divide(right, count, out=np.full(right.shape, math.nan), where=count > 0)
    drawn = np.flatnonzero(often)
    if len(drawn) > MOST_PROBLEMS:
        drawn = np.sort(np.random.default_rng(material.seed).choice(drawn, MOST_PROBLEMS, replace=False))
    order = drawn[np.argsort(np.nanmean(share[drawn], axis=1), kind="stable")]
    return HeatMap(
        name="reward_by_problem",
        title="Success by problem and step",
        x_label=_STEP,
        y_label="problem",
        columns=steps,
        lines=[str(problems[i]) for i in order],
        values=[[number(value) for value in share[i]] for i in order],
        unit="share of right samples",
        source="FR3E, figure 6",
        note=f"{len(order)} of {int(often.sum())} problems, hardest first; {origin}; {responses.note}",
    )
