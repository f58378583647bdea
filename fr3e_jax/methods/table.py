"""The registry as the table of docs/users/methods.md."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from fr3e_jax.methods.registry import METHODS, Method

MARKERS = "<!-- table: fr3e methods --write -->\n", "<!-- end of the table -->\n"

_HEADER = "| method | paper, equation | function | recipe | test | deviation |\n|---|---|---|---|---|---|"


def markdown_table() -> str:
    """One table for each group of methods, and the rows of the exploration study's Table 2."""
    parts = []
    for group, methods in groupby(METHODS, key=lambda method: method.group):
        parts += [f"### {group}", "", _HEADER, *map(_row, methods), ""]
    parts += ["### The exploration study's Table 2", "", "| row | recipe |", "|---|---|"]
    parts += [f"| {method.table2} | `{method.recipe_path}` |" for method in METHODS if method.table2]
    return "\n".join(parts) + "\n"


def _row(method: Method) -> str:
    cells = [
        method.name,
        method.source,
        f"`{method.function}`",
        f"`{method.recipe_path}`",
        f"`tests/{method.test}`",
        method.deviation,
    ]
    return f"| {' | '.join(cells)} |"


def write_table(page: Path) -> None:
    """Replace what stands between the two lines of `MARKERS` in ``page``.

    Raises:
      ValueError: the page has not each of them once, in this order.
    """
    text = page.read_text(encoding="utf-8")
    parts = [text.partition(marker) for marker in MARKERS]
    if [text.count(marker) for marker in MARKERS] != [1, 1] or len(parts[0][0]) > len(parts[1][0]):
        raise ValueError(
            f"{page} has not the lines {' and '.join(map(repr, MARKERS))} once each, in this order; add them"
        )
    page.write_text(parts[0][0] + MARKERS[0] + "\n" + markdown_table() + MARKERS[1] + parts[1][2], encoding="utf-8")


def list_methods() -> str:
    """A line for each method: recipe, name, source."""
    width = max(len(method.recipe_path) for method in METHODS)
    lines = []
    for group, methods in groupby(METHODS, key=lambda method: method.group):
        lines += ["", group, *(f"  {m.recipe_path:<{width}}  {m.name} ({m.source})" for m in methods)]
    return "\n".join([*lines[1:], "", "fr3e train RECIPE trains with one; docs/users/methods.md: how they combine."])
