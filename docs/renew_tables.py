"""Renew the tables of docs/users/methods.md and docs/users/metrics.md: ``python docs/renew_tables.py``."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from fr3e_jax.methods import read_methods
from fr3e_jax.runs.metric_meanings import GROUPS

METHODS = "| method | paper, equation | function | recipe | test | deviation |\n|---|---|---|---|---|---|"
METRICS = "| metric | unit | meaning | good | when |\n|---|---|---|---|---|"


def methods_table() -> str:
    """One table for each group of methods, and the rows of the exploration study's Table 2."""
    catalogue, parts = read_methods(), []
    for group, methods in groupby(catalogue, key=lambda method: method.group):
        parts += [f"### {group}", "", METHODS]
        parts += [
            f"| {m.name} | {m.source} | `{m.function}` | `{m.recipe}` | `{m.test}` | {m.deviation} |" for m in methods
        ]
        parts += [""]
    parts += ["### The exploration study's Table 2", "", "| row | recipe |", "|---|---|"]
    parts += [f"| {method.table_2} | `{method.recipe}` |" for method in catalogue if method.table_2]
    return "\n".join(parts) + "\n"


def metrics_table() -> str:
    """One table for each group of metrics."""
    parts = []
    for group in GROUPS:
        parts += [f"### {group.title}", "", f"When: {group.when}, unless a row says otherwise.", "", METRICS]
        parts += [f"| `{m.name}` | {m.unit} | {m.meaning} | {m.better} | {m.when} |" for m in group.metrics]
        parts += [""]
    return "\n".join(parts) + "\n"


USERS = Path(__file__).resolve().parent / "users"
TABLES = {USERS / "methods.md": methods_table, USERS / "metrics.md": metrics_table}
BEGIN, END = "<!-- table: docs/renew_tables.py -->\n", "<!-- end of the table -->\n"


def renewed(page: Path) -> str:
    """The text of a page with its table as it is now."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{TABLES[page]()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for path in TABLES:
        path.write_text(renewed(path), encoding="utf-8")
