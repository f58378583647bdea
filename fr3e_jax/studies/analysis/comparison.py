"""Groups of runs side by side: bands of curves, final scores, differences paired by seed, the price of a score.

Dimension key: S runs of a group, X places of a grid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.declared_metrics import is_score
from fr3e_jax.studies.analysis.bootstrap import (
    interval_of_mean,
    interval_over_problems,
    means_of_resamples,
    percentiles,
)
from fr3e_jax.studies.analysis.comparability import Flag, flags
from fr3e_jax.studies.analysis.held_out_scores import RIGHT, ProblemScores, differences_by_set, scores_of_problems
from fr3e_jax.studies.analysis.run_curves import (
    ALL_RIGHT,
    ALL_WRONG,
    AXES,
    MIXED,
    WASTED,
    first_reach,
    on_grid,
)
from fr3e_jax.studies.analysis.run_groups import Collection, ComparedRun, RunGroup, group_runs

TRAINING_METRICS = ("reward/mean", "entropy/mean", ALL_RIGHT, ALL_WRONG, MIXED, WASTED, "length/mean")
REACH_AXES = ("sampled_tokens", "trained_positions", "updates", "cpu_seconds")
MOST_PLACES = 300  # of a grid
CURVE_DRAWS = 2000  # resamples for the band at each place


@dataclass(frozen=True)
class Spread:
    """A number over the runs of a group."""

    values: Sequence[float]
    """In the order of the runs that have one."""
    runs: int
    """Runs of the group, with those that have no value."""

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation, with n − 1; None for fewer than two values."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Difference:
    """A group's final value minus the baseline's, paired by seed."""

    seeds: Sequence[int]
    """Those that both groups have."""
    values: Sequence[float]
    """For each seed."""
    over_seeds: tuple[float, float] | None
    """Bootstrap 95 % interval of the mean; None for fewer than two pairs."""
    over_problems: tuple[float, float] | None = None
    """The same over held-out problems, with these runs given; None without stored samples of both."""
    problems: int = 0

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, and all that is computed from them on request."""

    groups: Sequence[RunGroup]
    differing: Sequence[str]
    """Settings in which the groups differ."""
    flags: Sequence[Flag]
    baseline: RunGroup
    metric: str
    """The main metric, whose score is to be reached."""
    score: float | None
    """The score to reach; None if there is none."""
    more: Sequence[str] = ()
    """Metrics that the user named."""

    @cached_property
    def evaluation_metrics(self) -> list[str]:
        """Held-out scores that some run has: averages, passes, greedy; then those of single sets."""
        names = {name: None for group in self.groups for run in group.runs for name in run.curves.evaluations}
        scores = [name for name in names if is_score(name)]
        return sorted(scores, key=lambda name: ("/" in name, name != self.metric, list(names).index(name)))

    @cached_property
    def training_metrics(self) -> list[str]:
        """Those of `TRAINING_METRICS` that some run has, and those that the user named."""
        curves = [run.curves for group in self.groups for run in group.runs]
        usual = [name for name in TRAINING_METRICS if any(name in each.training for each in curves)]
        return usual + [name for name in self.more if name not in [*usual, *self.evaluation_metrics]]

    def final(self, group: RunGroup, metric: str) -> Spread:
        """The final values of the group's runs, see `RunCurves.final`."""
        values = [value for run in group.runs if (value := run.curves.final(metric)) is not None]
        return Spread(values, len(group.runs))

    def start(self, group: RunGroup, metric: str) -> Spread:
        """The held-out values before training."""
        curves = [curve for run in group.runs if (curve := run.curves.evaluations.get(metric)) is not None]
        return Spread([float(curve.values[0]) for curve in curves if curve.steps[0] == 0], len(group.runs))

    def grid(self, metric: str, axis: str) -> np.ndarray:
        """Places of all points of all runs; if they are many, as many evenly spaced ones and the ends of each run."""
        points = [x for group in self.groups for run in group.runs if len(x := run.curves.points(metric, axis)[0])]
        if not points:
            return np.zeros(0)
        every = np.unique(np.concatenate(points))
        if len(every) <= MOST_PLACES:
            return every
        ends = [end for x in points for end in (x[0], x[-1])]
        return np.unique(np.concatenate([np.linspace(every[0], every[-1], MOST_PLACES), ends]))

    def curves(self, group: RunGroup, metric: str, axis: str, grid: np.ndarray) -> np.ndarray | None:
        """The metric of the runs of the group that have it, on a grid ``[X]`` → ``[S, X]``; None if none has.

        NaN outside of a run's own points: nothing is extrapolated, so a mean ends with the shortest run.
        """
        points = [run.curves.points(metric, axis) for run in group.runs]
        each = [on_grid(x, y, grid) for x, y in points if len(x)]
        return np.array(each) if each else None

    def difference(self, group: RunGroup, metric: str) -> Difference:
        """Final value minus the baseline's, for the seeds that both have; runs of one seed count as their mean."""
        sides = [
            {seed: values for seed in side.seeds if (values := _finals(side, seed, metric))}
            for side in (group, self.baseline)
        ]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        values = [float(np.mean(sides[0][seed]) - np.mean(sides[1][seed])) for seed in seeds]
        over_problems, problems = self._over_problems(group, metric)
        interval = interval_of_mean(values)
        return Difference(seeds, values, interval, over_problems, problems)

    def _over_problems(self, group: RunGroup, metric: str) -> tuple[tuple[float, float] | None, int]:
        runs = [*group.runs, *self.baseline.runs]
        scores = {id(run): self.problem_scores.get(id(run), {}).get(metric) for run in runs}
        pairs = [
            (ours, theirs)
            for run in group.runs
            for other in self.baseline.runs
            if run.seed == other.seed and (ours := scores[id(run)]) and (theirs := scores[id(other)])
        ]
        differences = differences_by_set(pairs)
        if differences is None:
            return None, 0
        return interval_over_problems(differences), sum(map(len, differences))

    @cached_property
    def problem_scores(self) -> dict[int, dict[str, ProblemScores]]:
        """By run: the scores of the problems at the last evaluation, for runs that stored its samples."""
        scores = {}
        for group in self.groups:
            for run in group.runs:
                curve = run.curves.curve(self.metric)
                if curve is not None and int(curve.steps[-1]) in run.run.steps("eval"):
                    records = run.run.rollouts(int(curve.steps[-1]), "eval")
                    scores[id(run)] = scores_of_problems(records, [*self.evaluation_metrics, RIGHT])
        return scores

    def reach(self, group: RunGroup, axis: str) -> list[float | None]:
        """The spending of each run when its score first reached the given one, on the line between evaluations.

        None: the run never reached it.
        """
        values: list[float | None] = []
        for run in group.runs:
            x, y = run.curves.points(self.metric, axis)
            values.append(first_reach(x, y, self.score) if self.score is not None and len(x) else None)
        return values


def interval_of_curves(each: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Bootstrap interval of the mean of runs ``[S, X]`` at each place; None for one run."""
    if len(each) < 2:
        return None
    low, high = np.full((2, each.shape[1]), np.nan)
    reached = ~np.isnan(each).any(axis=0)
    low[reached], high[reached] = percentiles(means_of_resamples(each[:, reached], draws=CURVE_DRAWS))
    return low, high


def _finals(group: RunGroup, seed: int, metric: str) -> list[float]:
    finals = [run.curves.final(metric) for run in group.runs if run.seed == seed]
    return [value for value in finals if value is not None]


def compare(
    collection: Collection,
    *,
    by: Sequence[str] = (),
    labels: Sequence[str] = (),
    baseline: str = "first",
    metrics: Sequence[str] = (),
    reach: float | None = None,
) -> Comparison:
    """RunGroup the runs and choose baseline, metric and score.

    Args:
      collection: the runs.
      by, labels: see `group_runs`.
      baseline: label of the group that the others are measured against, or ``first``.
      metrics: the main metric, and others to show besides the usual ones; empty: the avg@k that most runs have.
      reach: the score to reach; None: the baseline's final one.

    Raises:
      ConfigError: there is no such setting, group or metric.
    """
    groups, differing = group_runs(collection.runs, by=by, labels=labels)
    names = [group.label for group in groups]
    if baseline != "first" and baseline not in names:
        raise ConfigError(f"--baseline: no group is called {baseline!r}; expected first or one of {', '.join(names)}")
    base = groups[0] if baseline == "first" else groups[names.index(baseline)]
    main = metrics[0] if metrics else _main_metric(collection.runs)
    for name in metrics:
        if not any(run.curves.curve(name) for run in collection.runs):
            curves = [run.curves for run in collection.runs]
            expected = ", ".join(sorted({metric for run in curves for metric in (*run.evaluations, *run.training)}))
            raise ConfigError(f"--metric: no run has {name!r}; expected some of {expected}")
    warnings = flags(groups, swept=list(by) or collection.swept, left_out=collection.left_out)
    comparison = Comparison(groups, differing, warnings, base, main, reach, tuple(dict.fromkeys(metrics)))
    if reach is None:
        return dataclasses.replace(comparison, score=comparison.final(base, main).mean)
    return comparison


def _main_metric(runs: Sequence[ComparedRun]) -> str:
    """The average that most runs have, else the greedy score, else any held-out one, else the reward of training."""
    counts: dict[str, int] = {}
    for run in runs:
        for name in run.curves.evaluations:
            if is_score(name) and "/" not in name:
                counts[name] = counts.get(name, 0) + 1
    if not counts:
        return "reward/mean"
    return max(counts, key=lambda name: (name.startswith("avg"), name == "greedy", counts[name]))


def axes_of(comparison: Comparison) -> Mapping[str, str]:
    """The axes that some run has, with their labels."""
    runs = [run for group in comparison.groups for run in group.runs]
    return {axis: label for axis, label in AXES.items() if any(axis in run.curves.spent for run in runs)}
