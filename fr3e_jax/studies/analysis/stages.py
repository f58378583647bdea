"""The rising and the plateau stage of a run, found from its curves. (Deng et al. 2025, 3.2.2, figure 3a.)

The paper draws the border by eye. Here it is the change point of two straight lines, fitted by least squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Series
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis

LEAST_POINTS = 5  # of each segment


@dataclass(frozen=True)
class SegmentedFit:
    """Two lines y = intercept + slope · x, the second from ``change`` on."""

    change: float
    """x of the first point of the second segment."""
    first: tuple[float, float]
    """Intercept and slope."""
    second: tuple[float, float]
    better: bool
    """Two lines describe the curve better than one, by BIC = n ln(SSE / n) + p ln n with p = 6 against 2.

    The border counts as two parameters: on a straight line with normal noise, two lines then win in 6 % of curves of 20
    points and 2 % of 40. Counted as one, they win in 18 % and 10 %.
    """

    @property
    def flattens(self) -> bool:
        """Return whether the second segment is flatter: a rising stage, then a plateau."""
        return self.better and abs(self.second[1]) < abs(self.first[1])


def two_segments(x: Sequence[float], y: Sequence[float]) -> SegmentedFit:
    """Least squares of two independent lines over all borders that leave 5 points on both sides.

    Raises:
      ValueError: there are fewer than 10 points.
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    n = len(xs)
    if n < 2 * LEAST_POINTS:
        raise ValueError(f"found {n} points; expected {2 * LEAST_POINTS} or more")
    single, _ = _line(xs, ys)
    borders = range(LEAST_POINTS, n - LEAST_POINTS + 1)
    fits = [(*_line(xs[:i], ys[:i]), *_line(xs[i:], ys[i:]), i) for i in borders]
    best = min(fits, key=lambda fit: fit[0] + fit[2])
    floor = 1e-12 * max(1e-30, float(np.sum((ys - ys.mean()) ** 2)))  # a perfect fit has no logarithm
    line, two_lines = (n * math.log(max(sse, floor, 1e-300) / n) for sse in (single, best[0] + best[2]))
    better = two_lines + 6 * math.log(n) < line + 2 * math.log(n)
    return SegmentedFit(float(xs[best[4]]), best[1], best[3], better)


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Sum of squared residuals; intercept and slope."""
    deviations = x - x.mean()
    slope = float(deviations @ (y - y.mean()) / (deviations @ deviations))
    intercept = float(y.mean() - slope * x.mean())
    return float(np.sum((y - intercept - slope * x) ** 2)), (intercept, slope)


def _figure(material: Material, metric: str, label: str) -> Figure:
    steps, values = material.curve(metric)
    if len(steps) < 2 * LEAST_POINTS:
        raise NothingToShow(f"{len(steps)} steps; needs {2 * LEAST_POINTS}")
    fit = two_segments(steps, [math.nan if value is None else value for value in values])
    series = [Series(label, steps, values)]
    if fit.better:
        for name, (intercept, slope), segment in (
            ("first stage", fit.first, [step for step in steps if step < fit.change]),
            ("second stage", fit.second, [step for step in steps if step >= fit.change]),
        ):
            series.append(Series(name, segment, [intercept + slope * step for step in segment]))
    if fit.flattens:
        verdict = f"rising stage to step {fit.change:g}, then a plateau"
    elif fit.better:
        verdict = f"no plateau: the second line is steeper from step {fit.change:g}"
    else:
        verdict = "one line fits as well: no stages"
    return Figure(
        title=f"Stages of training, from the {label}",
        y_label=label,
        series=series,
        note=f"{verdict}; slopes {fit.first[1]:.2e} and {fit.second[1]:.2e} a step; two lines by least squares, "
        f"{LEAST_POINTS} points or more each, against one by BIC",
    )


@analysis("metrics", "Deng et al. 2025, 3.2.2, figure 3a")
def stages_of_entropy(material: Material) -> Figure:
    """The change point of the entropy curve."""
    return _figure(material, "entropy/mean", "entropy (nats)")


@analysis("metrics", "Deng et al. 2025, 3.2.2, figure 3a")
def stages_of_reward(material: Material) -> Figure:
    """The change point of the reward curve."""
    return _figure(material, "reward/mean", "mean reward")
