"""``fr3e recipes``: the recipes that come with the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration import ConfigError
from fr3e_jax.shipped_files import find_recipe, recipe_names, root


def declare(parser: argparse.ArgumentParser) -> None:
    """The verb has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    """Print the names of the shipped recipes with what each is; return the exit code.

    Raises:
      ConfigError: the package was installed without them.
    """
    names = recipe_names()
    if not names:
        raise ConfigError("the package was installed without its recipes; install it from a wheel or a checkout")
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {_purpose(find_recipe(name))}".rstrip())
    print(f"\nin {root()}; `fr3e train NAME` trains with one, `fr3e new my.yaml --from NAME` begins one of your own")
    return 0


def _purpose(path: Path) -> str:
    """The method of a recipe's header, or its first comment; of an experiment, its recipes."""
    if path.is_dir():
        return "recipes to compare: " + ", ".join(sorted(file.stem for file in path.glob("*.yaml")))
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").removeprefix("Method: ") if first.startswith("# ") else ""


VERB = Verb("fr3e recipes", declare, run, recipe=False)
