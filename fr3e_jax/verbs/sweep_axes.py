"""The combinations of a sweep: each of the given values with each of the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.load import parse_override


def combinations(axes: dict[str, list[str]]) -> list[dict[str, str]]:
    """The settings of each run, by name, from the values of each setting."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def recipes_of(recipe: str) -> list[str]:
    """The recipe itself, or the recipes of a folder.

    Raises:
      ConfigError: the folder has none.
    """
    folder = Path(recipe).expanduser()
    if not folder.is_dir():
        return [recipe]
    recipes = [str(path) for path in sorted(folder.glob("*.yaml"))]
    if not recipes:
        raise ConfigError(f"{recipe} is a folder without recipes; expected *.yaml files in it, or name one recipe")
    return recipes


def parse_axes(overrides: Sequence[str]) -> dict[str, list[str]]:
    """The values of every key, in the order given."""
    axes: dict[str, list[str]] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            parse_override(override)  # raises, and says what a setting looks like
        if key in axes:
            raise ConfigError(f"command line: {key} is given twice; write {key}={','.join(axes[key])},{text}")
        if key == "runtime.run_dir":
            raise ConfigError("command line: a sweep names the run directories itself; set runtime.output_dir instead")
        axes[key] = split_values(text)
    return axes


def split_values(text: str) -> list[str]:
    """Split at commas outside brackets and quotes: ``[1,2],[3]`` is two values, ``'a,b'`` one."""
    values, closers, quote = [""], [], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and not values[-1]:
            quote = character
        elif character in "[{(":
            closers.append("]})"["[{(".index(character)])
        elif closers and character == closers[-1]:
            closers.pop()
        elif character == "," and not closers:
            values.append("")
            continue
        values[-1] += character
    if quote or closers:
        raise ConfigError(f"command line: {text!r} lacks a closing {quote or closers[-1]}")
    return values
