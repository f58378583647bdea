"""``fr3e methods``: the recipes that come with the package, and the methods in their headers."""

from __future__ import annotations

import argparse
from itertools import groupby

from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.tables import fitted
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.methods import Method, find_configs, read_methods


def declare(parser: argparse.ArgumentParser) -> None:
    """The verb has no options."""


def run(arguments: argparse.Namespace) -> int:
    """List the methods."""
    with as_config_error():
        text = _list_methods()
    print(fitted(text))
    return 0


def _list_methods() -> str:
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


VERB = Verb("fr3e methods", declare, run, recipe=False)
