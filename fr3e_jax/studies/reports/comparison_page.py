"""The page of a comparison: the flags, one chart of a metric over what the runs spent, the tables, and the problems."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fr3e_jax.studies.analysis.comparison import Comparison, axes_of, interval_of_curves
from fr3e_jax.studies.analysis.comparison_tables import tables
from fr3e_jax.studies.analysis.finding_content import finding_fields
from fr3e_jax.studies.analysis.problem_by_problem import side_by_side
from fr3e_jax.studies.analysis.run_curves import metric_label
from fr3e_jax.studies.reports.embedding import embed, significant
from fr3e_jax.studies.reports.list_items import entitle
from fr3e_jax.studies.reports.outcome_marks import MARKS
from fr3e_jax.studies.reports.page import DRAWING_SCRIPTS, assemble
from fr3e_jax.studies.reports.prompt_text import question_finder, shortened
from fr3e_jax.studies.reports.run_page import NAME

PROBLEM_CHARACTERS = 6_000_000
"""Of all questions and answers side by side; compressed they take about a fifth."""


def comparison_page(comparison: Comparison, folder: Path | None = None) -> str:
    """The whole page. It loads nothing, and the texts of runs reach it as data only.

    ``folder`` is where the page will lie; the links to the runs' reports start there. None: there are no links.
    """
    title = " · ".join(group.label for group in comparison.groups)
    scripts = [*DRAWING_SCRIPTS, "page/lists.js", "page/comparison.js"]
    data = {"main": embed(page_content(comparison, folder))}
    return assemble(f"Comparison: {title}", "page/comparison.html", scripts=scripts, data=data)


def page_content(comparison: Comparison, folder: Path | None = None) -> dict[str, Any]:
    """The data that the page draws: flags, groups, tables, each metric on each axis with its bands, and problems."""
    metrics = [*comparison.evaluation_metrics, *comparison.training_metrics]
    axes = axes_of(comparison)
    return {
        "flags": [{"kind": flag.kind, "text": flag.text} for flag in comparison.flags],
        "groups": [{"label": group.label, "runs": len(group.runs)} for group in comparison.groups],
        "reports": [
            (run.name, _address(report, folder))
            for group in comparison.groups
            for run in group.runs
            if folder is not None and (report := run.run.directory.path / NAME).is_file()
        ],
        "axes": list(axes.items()),
        "metrics": [(name, metric_label(name)) for name in metrics],
        "metric": comparison.metric,
        "curves": {name: {axis: _curves(comparison, name, axis) for axis in axes} for name in metrics},
        "tables": [finding_fields(table) for table in tables(comparison)],
        "problems": entitle([_problem_item(row) for row in side_by_side(comparison, PROBLEM_CHARACTERS)]),
        "filters": [
            ("all", "all problems"),
            ("differ", "some groups solve it"),
            *((f"only-{n}", f"only {shortened(group.label)}") for n, group in enumerate(comparison.groups)),
            ("each", "each group solves it"),
            ("none", "no group solves it"),
        ],
        "outcomes": MARKS,
    }


def _problem_item(row: dict[str, Any]) -> dict[str, Any]:
    """The entry of a problem in a list; see `list_items`."""
    icons = [answer and bool(answer["solved"]) for answer in row["answers"]]
    solved = [n for n, icon in enumerate(icons) if icon]
    answered = sum(icon is not None for icon in icons)
    tags = {
        "differ": 0 < len(solved) < answered,
        f"only-{solved[0]}" if solved else "": len(solved) == 1,
        "each": len(solved) == answered,
        "none": not solved,
    }
    return row | {
        "address": row["name"],
        "question": question_finder({}, None)(row["question"]),
        "problem": row["name"],
        "text": " ".join(answer["response"] for answer in row["answers"] if answer),
        "tags": [name for name, holds in tags.items() if holds],
        "order": {},
        "bounds": {},
        "facts": [],
        "icons": icons,
        "chunk": None,
    }


def _address(path: Path, folder: Path) -> str:
    """A relative address of a file; it begins with a dot, so that no name of a run is read as a scheme."""
    return "./" + quote(Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix())


def _curves(comparison: Comparison, metric: str, axis: str) -> dict[str, Any]:
    grid = comparison.grid(metric, axis)
    groups: list[dict[str, Any] | None] = []
    for group in comparison.groups:
        each = comparison.curves(group, metric, axis, grid)
        if each is None:
            groups.append(None)
            continue
        bands = {"range": (each.min(axis=0), each.max(axis=0)), "interval": interval_of_curves(each)}
        drawn = {
            name: [_numbers(end) for end in ends] if ends and len(each) > 1 else None for name, ends in bands.items()
        }
        measured = np.concatenate([run.curves.points(metric, axis)[0] for run in group.runs])
        dots = np.flatnonzero(np.isin(grid, measured)).tolist()  # the others lie on the line between evaluations
        groups.append({"mean": _numbers(each.mean(axis=0)), "dots": dots, **drawn})
    return {"x": _numbers(grid), "groups": groups}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [significant(float(value)) for value in values]
