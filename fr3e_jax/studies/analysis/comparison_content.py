"""The numbers of a comparison as one JSON object."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fr3e_jax.studies.analysis.comparison import REACH_AXES, Comparison
from fr3e_jax.studies.analysis.run_curves import AXES

INTERVALS = ("low", "high", "low_over_problems", "high_over_problems")


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Flags, groups and `result_rows`. The runs' own metrics have the points of curves."""
    return {
        "flags": [{"kind": flag.kind, "text": flag.text} for flag in comparison.flags],
        "baseline": comparison.baseline.label,
        "metric": comparison.metric,
        "score": comparison.score,
        "differing_settings": list(comparison.differing),
        "groups": [
            {
                "label": group.label,
                "settings": {name: _plain(group.runs[0].settings.get(name)) for name in comparison.differing},
                "runs": [
                    {"name": run.name, "path": str(run.run.directory.path), "seed": run.seed, "state": run.state}
                    | {"spent": {axis: total for axis, total in run.curves.totals.items() if axis in AXES}}
                    for run in group.runs
                ],
            }
            for group in comparison.groups
        ],
        "rows": list(result_rows(comparison)),
    }


def _plain(value: Any) -> Any:
    """The value of a setting; an infinite number as text, which JSON lacks."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def result_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Results; ``table`` tells them apart.

    ``final``: the final value of a run; ``reach``: what a run had spent at the score, null if it never reached it;
    ``difference``: mean and interval over seeds, of so many pairs (``runs``), and the interval over problems.
    """
    metrics = [*comparison.evaluation_metrics, *comparison.training_metrics]
    for group in comparison.groups:
        reached = {axis: comparison.reach(group, axis) for axis in REACH_AXES}
        for i, run in enumerate(group.runs):
            common = {"group": group.label, "run": run.name, "seed": run.seed}
            for name in metrics:
                if (value := run.curves.final(name)) is not None:
                    yield {"table": "final", **common, "metric": name, "value": value}
            spent = {axis: values[i] for axis, values in reached.items()}
            yield {"table": "reach", **common, "metric": comparison.metric, **spent, "value": comparison.score}
        if group is not comparison.baseline:
            for name in metrics:
                difference = comparison.difference(group, name)
                ends = (*(difference.over_seeds or (None, None)), *(difference.over_problems or (None, None)))
                row = {"table": "difference", "group": group.label, "metric": name, "value": difference.mean}
                yield row | dict(zip(INTERVALS, ends, strict=True)) | {"runs": len(difference.values)}
