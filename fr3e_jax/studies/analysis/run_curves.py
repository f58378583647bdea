"""The metrics of a stored run as curves over what the run had spent.

Dimension key: N points of a curve, X places of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from fr3e_jax.runs.declared_metrics import find, is_score

AXES = {
    "sampled_tokens": "sampled tokens",
    "trained_positions": "trained positions",
    "updates": "optimizer steps",
    "step": "training steps",
    "cpu_seconds": "CPU seconds",
    "wall_seconds": "wall seconds",
}
"""What a run spends: name -> label. All are totals since the start of the run."""

_PER_STEP = {
    "sampled_tokens": "tokens/sampled_tokens",
    "trained_positions": "tokens/trained_positions",
    "updates": "updates",
}
_TOTALS = ("cpu_seconds", "wall_seconds")

ALL_RIGHT, ALL_WRONG, MIXED = "all_right", "all_wrong", "mixed"
WASTED = "wasted_tokens"
EVAL = "eval/"  # before the names of held-out metrics that are no scores, as in TensorBoard
FINAL_SHARE = 0.1  # of the steps, over which the final value of a training metric is the mean


@dataclass(frozen=True)
class Curve:
    """A metric after some steps. ``steps`` int ``[N]`` rise strictly; ``values`` float ``[N]`` are finite."""

    steps: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, points: Mapping[int, Any]) -> Curve:
        """From step -> value; values that are no finite numbers are left out."""
        steps = sorted(step for step, value in points.items() if is_finite(value))
        return cls(np.array(steps, int), np.array([points[step] for step in steps], float))


@dataclass(frozen=True)
class RunCurves:
    """The spending of a run after each step, and its metrics."""

    spent: Mapping[str, Mapping[int, float]]
    """Axis of `AXES` -> step -> total after this step; 0 after step 0. An axis that the metrics lack is absent."""
    evaluations: Mapping[str, Curve]
    """Held-out metrics, from step 0, before training: scores by their names, others as ``eval/length/mean``."""
    training: Mapping[str, Curve]
    """Metrics of the training steps, and `ALL_RIGHT`, `ALL_WRONG`, `MIXED`, `WASTED`."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Totals of the whole run: the axes, ``compile_seconds``, and the three shares of prompts."""

    @property
    def last_step(self) -> int:
        """The last training step on record; 0 without any."""
        return int(max(self.spent["step"]))

    def curve(self, metric: str) -> Curve | None:
        """The held-out metric of this name, else the training metric; None if there is neither."""
        curve = self.evaluations.get(metric) or self.training.get(metric)
        return curve if curve is not None and len(curve.steps) else None

    def points(self, metric: str, axis: str) -> tuple[np.ndarray, np.ndarray]:
        """Places ``[N]`` on the axis, which rise strictly, and values ``[N]``.

        An evaluation after step s stands at the total that was spent up to the end of step s, so the one before
        training stands at 0. Where several steps have one place, as steps that sampled nothing, the last counts.
        """
        curve, spent = self.curve(metric), self.spent.get(axis)
        if curve is None or spent is None:
            return np.zeros(0), np.zeros(0)
        pairs = {spent[int(s)]: float(v) for s, v in zip(curve.steps, curve.values, strict=True) if int(s) in spent}
        places = sorted(pairs)
        return np.array(places, float), np.array([pairs[spent] for spent in places])

    def final(self, metric: str) -> float | None:
        """The last held-out value; of a training metric, the mean over the last tenth of its steps.

        `ALL_RIGHT`, `ALL_WRONG` and `MIXED` are shares of all prompts of the run, and `WASTED` counts the whole run.
        """
        if metric in self.totals:
            return self.totals[metric]
        curve = self.curve(metric)
        if curve is None:
            return None
        if metric in self.evaluations or metric == WASTED:
            return float(curve.values[-1])
        return float(curve.values[-max(1, math.ceil(FINAL_SHARE * len(curve.values))) :].mean())


def run_curves(records: Sequence[Mapping[str, Any]], *, epochs: int = 1) -> RunCurves:
    """Curves from the metrics of a run (``metrics.jsonl``); of two records of a step and kind, the later counts.

    Args:
      records: as ``StoredRun.records``.
      epochs: ``training.epochs``, the number of times that each token of a full batch trains.

    Tokens are wasted if they entered no policy loss: those of rejected prompts, of base rollouts that do not train, of
    dropped surplus, and those that still wait to train. `WASTED` is their share of all tokens sampled so far,
    1 − Σ loss_tokens / (epochs · Σ sampled_tokens), with the first sum over tokens that are not replayed. Such a token
    trains once an epoch at most, so none counts twice.
    """
    training = {int(record["step"]): record for record in records if record.get("kind") == "train"}
    evaluated = {int(record["step"]): record for record in records if record.get("kind") == "eval"}
    steps = sorted(training)
    spent: dict[str, dict[int, float]] = {"step": {0: 0.0} | {step: float(step) for step in steps}}
    for axis, key in _PER_STEP.items():
        if steps and all(is_finite(training[step].get(key)) for step in steps):
            sums = np.cumsum([float(training[step][key]) for step in steps])
            spent[axis] = {0: 0.0} | dict(zip(steps, sums.tolist(), strict=True))
    for axis in _TOTALS:
        if steps and all(is_finite(training[step].get(axis)) for step in steps):
            spent[axis] = {0: 0.0} | {step: float(training[step][axis]) for step in steps}
    curves = _by_metric(training)
    shares, totals = _shares_of_prompts(training)
    curves |= shares
    if (wasted := _wasted(training, steps, epochs)) is not None:
        curves[WASTED] = wasted
    totals |= {axis: totals_of[max(totals_of)] for axis, totals_of in spent.items()}
    if steps and all(is_finite(training[step].get("compile/seconds")) for step in steps):
        totals["compile_seconds"] = sum(float(training[step]["compile/seconds"]) for step in steps)
    held_out = {name if is_score(name) else EVAL + name: curve for name, curve in _by_metric(evaluated).items()}
    return RunCurves(spent, held_out, curves, totals)


def _by_metric(records: Mapping[int, Mapping[str, Any]]) -> dict[str, Curve]:
    names = {name: None for record in records.values() for name in record if name not in ("step", "kind")}
    made = {name: Curve.of({step: r[name] for step, r in records.items() if name in r}) for name in names}
    return {name: curve for name, curve in made.items() if len(curve.steps)}


def _shares_of_prompts(training: Mapping[int, Mapping[str, Any]]) -> tuple[dict[str, Curve], dict[str, float]]:
    """Shares of a step's prompts by the verdicts on their base rollouts; the same of all prompts of the run."""
    names = (ALL_RIGHT, ALL_WRONG, MIXED)
    counts: dict[int, list[Any]]
    counts = {step: [r.get(f"base_groups/{name}") for name in names] for step, r in training.items()}
    graded = {step: row for step, row in counts.items() if all(is_finite(count) for count in row) and sum(row)}
    if not graded:
        return {}, {}
    table = np.array(list(graded.values()), float)
    shares, total = table / table.sum(axis=1, keepdims=True), table.sum(axis=0) / table.sum()
    columns = zip(names, shares.T, strict=True)
    return (
        {name: Curve.of(dict(zip(graded, column, strict=True))) for name, column in columns},
        dict(zip(names, total.tolist(), strict=True)),
    )


def _wasted(training: Mapping[int, Mapping[str, Any]], steps: Sequence[int], epochs: int) -> Curve | None:
    keys = ("tokens/sampled_tokens", "tokens/loss_tokens")
    if not steps or not all(is_finite(training[step].get(key)) for step in steps for key in keys):
        return None
    replayed = epochs * np.cumsum([float(training[step].get("replay/trained_tokens", 0)) for step in steps])
    sampled, trained = (np.cumsum([float(training[step][key]) for step in steps]) for key in keys)
    if not sampled[-1]:
        return None
    fresh = zip(steps, sampled, trained - replayed, strict=True)
    return Curve.of({step: 1 - t / (epochs * s) for step, s, t in fresh if s})


def on_grid(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Linear interpolation of points ``[N]`` at ``grid`` ``[X]`` → ``[X]``; NaN outside: nothing is extrapolated."""
    if not len(x):
        return np.full(len(grid), np.nan)
    values = np.interp(grid, x, y)
    return np.where((grid >= x[0]) & (grid <= x[-1]), values, np.nan)


def first_reach(x: np.ndarray, y: np.ndarray, score: float) -> float | None:
    """The first place at which the line through the points ``[N]`` is at ``score`` or above; None: it never is."""
    above = np.flatnonzero(y >= score)
    if not len(above):
        return None
    i = int(above[0])
    if i == 0:
        return float(x[0])
    return float(x[i - 1] + (score - y[i - 1]) / (y[i] - y[i - 1]) * (x[i] - x[i - 1]))


def metric_label(name: str) -> str:
    """The name of a metric for readers."""
    row = find(name)
    return {
        ALL_RIGHT: "All-Right (share of prompts)",
        ALL_WRONG: "All-Wrong (share of prompts)",
        MIXED: "mixed (share of prompts)",
        WASTED: "wasted tokens (share of sampled)",
    }.get(name, f"{name}, held-out" if is_score(name) else row.label if row and row.label else name)


def is_finite(value: Any) -> TypeGuard[int | float]:
    """Return whether a recorded value is a number, neither NaN nor infinite."""
    return isinstance(value, int | float) and math.isfinite(value)
