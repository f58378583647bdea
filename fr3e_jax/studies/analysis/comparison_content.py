"""The numbers of a comparison for files: one JSON object, rows of CSV, and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fr3e_jax.studies.analysis.comparison import REACH_AXES, Comparison
from fr3e_jax.studies.analysis.comparison_tables import tables
from fr3e_jax.studies.analysis.figure import TextTable
from fr3e_jax.studies.analysis.run_curves import AXES
from fr3e_jax.studies.analysis.run_groups import ComparedRun
from fr3e_jax.visible_text import visible

INTERVALS = ("low", "high", "low_over_problems", "high_over_problems")
CSV_COLUMNS = ("table", "group", "run", "seed", "metric", *AXES, "value", *INTERVALS, "runs")


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Flags, groups and all `csv_rows` but the points of curves, which the runs' own metrics have."""
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
        "rows": [row for row in csv_rows(comparison) if row["table"] != "point"],
    }


def _plain(value: Any) -> Any:
    """The value of a setting; an infinite number as text, which JSON lacks."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def csv_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Rows of `CSV_COLUMNS`; ``table`` tells them apart.

    ``point``: a metric of a run after a step, with all that was spent up to it; ``final``: the final value of a run;
    ``reach``: what a run had spent at the score, empty if it never reached it; ``difference``: mean and interval over
    seeds, of so many pairs (``runs``), and the interval over problems.
    """
    metrics = [*comparison.evaluation_metrics, *comparison.training_metrics]
    for group in comparison.groups:
        reached = {axis: comparison.reach(group, axis) for axis in REACH_AXES}
        for i, run in enumerate(group.runs):
            common = {"group": group.label, "run": run.name, "seed": run.seed}
            for name in metrics:
                yield from _points(run, name, common | {"metric": name})
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


def _points(run: ComparedRun, metric: str, common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    curve = run.curves.curve(metric)
    if curve is not None:
        for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
            spent = {axis: totals[step] for axis, totals in run.curves.spent.items() if step in totals}
            yield {"table": "point", **common, **spent, "value": value}


def as_markdown(comparison: Comparison) -> str:
    """The flags and all tables as Markdown. Texts of runs are escaped: they are data, not markup."""
    lines = [f"# Comparison of {', '.join(_escaped(group.label) for group in comparison.groups)}", ""]
    if comparison.flags:
        lines += ["**Before you compare:**", ""]
        lines += [f"- **{flag.kind}**: {_escaped(flag.text)}" for flag in comparison.flags] + [""]
    for table in tables(comparison):
        lines += [f"## {_escaped(table.title)}", "", *_markdown_table(table), ""]
        lines += [table.note, ""] if table.note else []
    return "\n".join(lines)


def _markdown_table(table: TextTable) -> Iterator[str]:
    yield f"| {' | '.join(_escaped(name) for name in table.columns)} |"
    yield "|" + "---|" * len(table.columns)
    for row in table.cells:
        yield f"| {' | '.join(_escaped(str(cell)) for cell in row)} |"


def _escaped(text: str) -> str:
    text = visible(text).replace("\\", "\\\\").replace("\n", " ")
    for mark in "|<>*_`[]&#":
        text = text.replace(mark, "&amp;" if mark == "&" else f"\\{mark}")
    return text
