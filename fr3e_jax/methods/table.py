"""The catalogue as text: the table of docs/users/methods.md, the list of `fr3e methods`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from fr3e_jax.methods.recipe_headers import Method, read_methods

MARKERS = "<!-- table: fr3e methods --write -->\n", "<!-- end of the table -->\n"

_HEADER = "| method | paper, equation | function | recipe | test | deviation |\n|---|---|---|---|---|---|"


def markdown_table() -> str:
    """One table for each group of methods, and the rows of the exploration study's Table 2."""
    catalogue, parts = read_methods(), []
    for group, methods in groupby(catalogue, key=lambda method: method.group):
        parts += [f"### {group}", "", _HEADER, *map(_row, methods), ""]
    parts += ["### The exploration study's Table 2", "", "| row | recipe |", "|---|---|"]
    parts += [f"| {method.table_2} | `{method.recipe}` |" for method in catalogue if method.table_2]
    return "\n".join(parts) + "\n"


def _row(method: Method) -> str:
    cells = [
        method.name,
        method.source,
        f"`{method.function}`",
        f"`{method.recipe}`",
        f"`{method.test}`",
        method.deviation,
    ]
    return f"| {' | '.join(cells)} |"


def write_table(page: Path) -> None:
    """Replace the text between the two lines of `MARKERS` in ``page``.

    Raises:
      ValueError: the page does not have both lines once, in this order.
      HeaderError: a recipe has no proper header.
    """
    text = page.read_text(encoding="utf-8")
    parts = [text.partition(marker) for marker in MARKERS]
    if [text.count(marker) for marker in MARKERS] != [1, 1] or len(parts[0][0]) > len(parts[1][0]):
        raise ValueError(
            f"{page} does not have the lines {' and '.join(map(repr, MARKERS))} once each, in this order; add them"
        )
    page.write_text(parts[0][0] + MARKERS[0] + "\n" + markdown_table() + MARKERS[1] + parts[1][2], encoding="utf-8")


def list_methods() -> str:
    """A line for each method: recipe, name, source."""
    catalogue, lines = read_methods(), []
    width = max(len(method.recipe) for method in catalogue)
    for group, methods in groupby(catalogue, key=lambda method: method.group):
        lines += ["", group, *(f"  {m.recipe:<{width}}  {m.name} ({m.source})" for m in methods)]
    return "\n".join(
        [*lines[1:], "", "fr3e train RECIPE trains with one; docs/users/methods.md says how they combine."]
    )
