"""The table of metrics as text: docs/users/metrics.md, and the list of ``fr3e metrics``."""

from __future__ import annotations

from fr3e_jax.runs.declared_metrics import Metric, MetricGroup
from fr3e_jax.runs.metric_table import GROUPS

_HEADER = "| metric | unit | meaning | good | when |\n|---|---|---|---|---|"


def metrics_table() -> str:
    """One Markdown table for each group."""
    parts = []
    for group in GROUPS:
        parts += [f"### {group.title}", "", f"When: {group.when}, unless a row says otherwise.", "", _HEADER]
        parts += [*map(_row, group.metrics), ""]
    return "\n".join(parts) + "\n"


def _row(metric: Metric) -> str:
    return f"| `{metric.name}` | {metric.unit} | {metric.meaning} | {metric.better} | {metric.when} |"


def list_metrics(text: str = "") -> str:
    """A line for each metric whose name has ``text``.

    Raises:
      ValueError: there is none.
    """
    matches = [(group, [metric for metric in group.metrics if text in metric.name]) for group in GROUPS]
    matches = [(group, metrics) for group, metrics in matches if metrics]
    if not matches:
        raise ValueError(f"found no metric whose name has {text!r}; `fr3e metrics` lists all names")
    width = max(len(metric.name) for _, metrics in matches for metric in metrics)
    lines = []
    for group, metrics in matches:
        lines += ["", f"{group.title} ({_when(group)})"]
        lines += [f"  {metric.name:<{width}}  {metric.explanation}" for metric in metrics]
    return "\n".join(lines[1:])


def _when(group: MetricGroup) -> str:
    return group.when if group.kind == "train" else f"{group.when}, kind eval"
