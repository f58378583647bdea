"""The table of metrics as text: docs/users/metrics.md, and the list of ``fr3e metrics``."""

from __future__ import annotations

from pathlib import Path

from fr3e_jax.runs.declared_metrics import Metric, MetricGroup
from fr3e_jax.runs.metric_table import GROUPS

MARKERS = "<!-- table: fr3e metrics --write -->\n", "<!-- end of the table -->\n"

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


def write_metrics_table(page: Path) -> None:
    """Replace the text between the two lines of `MARKERS` in ``page``.

    Raises:
      OSError: the page cannot be read or written.
      ValueError: the page does not have both lines once, in this order.
    """
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKERS[0])
    _, _, after = rest.partition(MARKERS[1])
    if [text.count(marker) for marker in MARKERS] != [1, 1] or MARKERS[1] not in rest:
        raise ValueError(
            f"{page} does not have the lines {' and '.join(map(repr, MARKERS))} once each, in this order; add them"
        )
    page.write_text(before + MARKERS[0] + "\n" + metrics_table() + MARKERS[1] + after, encoding="utf-8")


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
