"""The page of a comparison: the flags, one chart of a metric over what the runs spent, and all tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from fr3e_jax.studies.analysis.comparison import Comparison, axes_of, interval_of_curves
from fr3e_jax.studies.analysis.comparison_tables import tables
from fr3e_jax.studies.analysis.finding_content import finding_fields
from fr3e_jax.studies.analysis.run_curves import metric_label
from fr3e_jax.studies.reports.embedding import embed, significant
from fr3e_jax.studies.reports.page import DRAWING_SCRIPTS, assemble


def comparison_page(comparison: Comparison) -> str:
    """The whole page. It loads nothing, and the texts of runs reach it as data only."""
    title = " · ".join(group.label for group in comparison.groups)
    scripts = [*DRAWING_SCRIPTS, "page/comparison.js"]
    return assemble(f"Comparison: {title}", scripts=scripts, data={"main": embed(page_content(comparison))})


def page_content(comparison: Comparison) -> dict[str, Any]:
    """The data that the page draws: flags, groups, tables, and each metric on each axis with its bands."""
    metrics = [*comparison.evaluation_metrics, *comparison.training_metrics]
    axes = axes_of(comparison)
    return {
        "flags": [{"kind": flag.kind, "text": flag.text} for flag in comparison.flags],
        "groups": [{"label": group.label, "runs": len(group.runs)} for group in comparison.groups],
        "axes": list(axes.items()),
        "metrics": [(name, metric_label(name)) for name in metrics],
        "metric": comparison.metric,
        "curves": {name: {axis: _curves(comparison, name, axis) for axis in axes} for name in metrics},
        "tables": [finding_fields(table) for table in tables(comparison)],
    }


def _curves(comparison: Comparison, metric: str, axis: str) -> dict[str, Any]:
    grid = comparison.grid(metric, axis)
    groups: list[dict[str, Any] | None] = []
    for group in comparison.groups:
        each = comparison.curves(group, metric, axis, grid)
        if each is None:
            groups.append(None)
            continue
        bands = {"range": (each.min(axis=0), each.max(axis=0)), "interval": interval_of_curves(each, comparison.seed)}
        drawn = {
            name: [_numbers(end) for end in ends] if ends and len(each) > 1 else None for name, ends in bands.items()
        }
        groups.append({"mean": _numbers(each.mean(axis=0)), **drawn})
    return {"x": _numbers(grid), "groups": groups}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [significant(float(value)) for value in values]
