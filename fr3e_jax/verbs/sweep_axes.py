"""The combinations of a sweep: all of the given values (grid search), or so many at random (random search)."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.load import parse_override

RANGE = re.compile(r"(uniform|loguniform|integers)\(([^(),]*),([^(),]*)\)")
"""A range to draw from: evenly, evenly in the logarithm, or whole numbers, both ends included."""


def combinations(axes: dict[str, list[str]], sample: int = 0, seed: int = 0) -> list[dict[str, str]]:
    """The settings of each run, by name.

    Args:
      axes: the values of each setting; the text of a ``RANGE`` may be one.
      sample: draw so many; 0: all, in the order of the grid.
      seed: of the draw.

    Raises:
      ConfigError: there are ranges and no ``sample``, or a range is empty.
    """
    ranges = {key: match for key, values in axes.items() for value in values if (match := RANGE.fullmatch(value))}
    if ranges and not sample:
        key, match = next(iter(ranges.items()))
        raise ConfigError(f"command line: {key}={match[0]} is a range; say how many runs draw from it with --sample N")
    for key, match in ranges.items():
        if len(axes[key]) > 1:
            raise ConfigError(f"command line: {key} has {match[0]} beside other values; a range stands alone")
    generator = random.Random(seed)
    grid = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if not ranges:
        chosen = sorted(generator.sample(range(len(grid)), sample)) if 0 < sample < len(grid) else range(len(grid))
        return [grid[index] for index in chosen]
    return [
        generator.choice(grid) | {key: _drawn(key, match, generator) for key, match in ranges.items()}
        for _ in range(sample)
    ]


def _drawn(key: str, match: re.Match[str], generator: random.Random) -> str:
    kind = match[1]
    try:
        low, high = (int(end) if kind == "integers" else float(end) for end in match.group(2, 3))
    except ValueError:
        raise ConfigError(f"command line: {key}={match[0]} needs two numbers, as in {kind}(1,10)") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or kind != "loguniform")):
        lowest = "above 0 " if kind == "loguniform" else ""
        raise ConfigError(
            f"command line: {key}={match[0]} is no range; expected a first number {lowest}below the second"
        )
    if isinstance(low, int) and isinstance(high, int):
        return str(generator.randint(low, high))
    value = (
        math.exp(generator.uniform(math.log(low), math.log(high)))
        if kind == "loguniform"
        else generator.uniform(low, high)
    )
    return f"{value:.4g}"


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
