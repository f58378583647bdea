"""The catalogue as text: the table of docs/users/methods.md, the list of `fr3e methods`."""

from __future__ import annotations

from itertools import groupby

from fr3e_jax.methods.recipe_headers import Method, find_configs, read_methods

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


def list_methods() -> str:
    """A line for each recipe: its name, as `fr3e train` takes it, method and source; then the folders to compare."""
    catalogue, configs, lines = read_methods(), find_configs(), []
    width = max(len(_short_name(method)) for method in catalogue)
    for group, methods in groupby(catalogue, key=lambda method: method.group):
        lines += ["", group, *(f"  {_short_name(m):<{width}}  {m.name} ({m.source})" for m in methods)]
    lines += ["", "Recipes to compare, with fr3e sweep"]
    for folder in sorted((configs / "experiments").glob("*/")):
        recipes = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        lines.append(f"  {f'experiments/{folder.name}':<{width}}  {recipes}")
    ending = (
        f"in {configs}; fr3e train NAME trains with one, `include: NAME` begins a file of your own, and "
        "docs/users/methods.md says how they combine."
    )
    return "\n".join([*lines[1:], "", ending])


def _short_name(method: Method) -> str:
    return method.recipe.removeprefix("configs/").removesuffix(".yaml")
