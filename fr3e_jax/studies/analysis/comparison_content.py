"""The numbers of a comparison for files: one JSON object, rows of CSV, and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fr3e_jax.studies.analysis.comparison import REACH_AXES, Comparison
from fr3e_jax.studies.analysis.comparison_tables import tables
from fr3e_jax.studies.analysis.figure import TextTable
from fr3e_jax.studies.analysis.run_curves import AXES
from fr3e_jax.studies.analysis.run_groups import ComparedRun, Group
from fr3e_jax.visible_text import visible

CSV_COLUMNS = ("table", "group", "run", "seed", "metric", *AXES, "value", "low", "high", "runs")


def as_json(comparison: Comparison) -> dict[str, Any]:
    """All numbers but the curves of single runs, which are in the CSV rows and in the runs' own metrics."""
    metrics = [*comparison.evaluation_metrics, *comparison.training_metrics]
    return {
        "flags": [{"kind": flag.kind, "text": flag.text} for flag in comparison.flags],
        "baseline": comparison.baseline.label,
        "metric": comparison.metric,
        "score": comparison.score,
        "differing_settings": list(comparison.differing),
        "groups": [_group(comparison, group, metrics) for group in comparison.groups],
    }


def _group(comparison: Comparison, group: Group, metrics: Sequence[str]) -> dict[str, Any]:
    settings = group.runs[0].settings
    content: dict[str, Any] = {
        "label": group.label,
        "settings": {name: _plain(settings.get(name)) for name in comparison.differing},
        "runs": [
            {"name": run.name, "path": str(run.run.directory.path), "seed": run.seed, "state": run.state}
            | {"spent": {axis: total for axis, total in run.curves.totals.items() if axis in AXES}}
            | {"final": {name: run.curves.final(name) for name in metrics}}
            for run in group.runs
        ],
        "final": {},
        "spent_to_reach": {},
    }
    for name in metrics:
        spread = comparison.final(group, name)
        content["final"][name] = {"mean": spread.mean, "std": spread.std, "values": list(spread.values)}
    for axis in REACH_AXES:
        reach = comparison.reach(group, axis)
        content["spent_to_reach"][axis] = {"mean": reach.mean, "values": list(reach.values)}
    if group is not comparison.baseline:
        content["differences"] = {name: _difference(comparison, group, name) for name in metrics}
    return content


def _plain(value: Any) -> Any:
    """The value of a setting; an infinite number as text, which JSON lacks."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _difference(comparison: Comparison, group: Group, metric: str) -> dict[str, Any]:
    one = comparison.difference(group, metric)
    return {
        "mean": one.mean,
        "seeds": list(one.seeds),
        "values": list(one.values),
        "interval_over_seeds": one.over_seeds,
        "interval_over_problems": one.over_problems,
        "problems": one.problems,
    }


def csv_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Rows of `CSV_COLUMNS`; ``table`` tells them apart.

    ``point``: a metric of a run after a step, with all that was spent up to it; ``final``: the final value of a run;
    ``reach``: what a run had spent at the score, empty if it never reached it; ``difference``: mean and interval over
    seeds, of so many pairs (``runs``).
    """
    metrics = [*comparison.evaluation_metrics, *comparison.training_metrics]
    for group in comparison.groups:
        reached = {axis: comparison.reach(group, axis).values for axis in REACH_AXES}
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
                one = comparison.difference(group, name)
                low, high = one.over_seeds or (None, None)
                row = {"table": "difference", "group": group.label, "metric": name, "value": one.mean}
                yield row | {"low": low, "high": high, "runs": len(one.values)}


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
