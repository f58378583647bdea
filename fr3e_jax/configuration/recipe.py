"""Recipes: YAML files of settings that may include one another, read into layers that name their file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fr3e_jax.configuration.peer_names import our_names
from fr3e_jax.configuration.provenance import CONFIG_FILE
from fr3e_jax.configuration.settings import ConfigError, nearest_path, sections, settings

INCLUDE = "include"


@dataclass(frozen=True)
class Layer:
    """Leaf values by dotted path, and the file or the command line that gives them. Later layers win."""

    source: str
    values: dict[str, Any]


def read_recipe(recipe: Path, including: tuple[Path, ...] = ()) -> list[Layer]:
    """The layers of a recipe, included files first. Includes are relative to the file that names them.

    Raises:
        ConfigError: no such file, not YAML, an unknown setting, or files that include one another in a circle.
    """
    source = including[-1] if including else None
    if any(recipe.resolve() == path.resolve() for path in including):
        chain = " -> ".join(str(path) for path in (*including, recipe))
        raise ConfigError(f"{source}: {INCLUDE} runs in a circle, {chain}; remove one of these includes")
    if not recipe.is_file():
        raise ConfigError(_missing(recipe, source))
    content = _read_yaml(recipe)
    included = content.pop(INCLUDE, None) or []
    included = [included] if isinstance(included, str) else included
    if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
        raise ConfigError(f"{recipe}: {INCLUDE} is {included!r}; expected a file name or a list of file names")
    layers = [layer for name in included for layer in read_recipe(recipe.parent / name, (*including, recipe))]
    return [*layers, Layer(str(recipe), flatten(content, str(recipe)))]


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is a list; expected sections, for example 'explore: {{num_anchors: 4}}'")
    return content


def flatten(content: dict[str, Any], source: str, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as leaf values by dotted path; every path is checked against the schema.

    Raises:
        ConfigError: a path that is no setting, or a section that is given a value.
    """
    leaves: dict[str, Any] = {}
    for name, value in content.items():
        path = f"{prefix}{name}"
        if path in settings():
            leaves[path] = value
        elif path not in sections():
            raise ConfigError(f"{source}: {unknown_setting(path)}")
        elif isinstance(value, dict):
            leaves |= flatten(value, source, f"{path}.")
        elif value is not None:
            first = next((leaf for leaf in settings() if leaf.startswith(f"{path}.")), "")
            advice = f"set a field, e.g. {first}" if first else "it has no settings; leave it out"
            raise ConfigError(f"{source}: {path} is a section, not a value ({value!r}); {advice}")
    return leaves


def unknown_setting(path: str) -> str:
    """The message about a dotted path that is not in the schema."""
    nearest = nearest_path(path, [*settings(), *sections()])
    if ours := our_names(path):
        advice = f"here it is {' and '.join(ours)}"
    else:
        advice = f"nearest: {nearest}" if nearest else f"sections: {', '.join(sections())}"
    return f"{path} is not a setting; {advice}; `fr3e help all` lists all"


def _missing(recipe: Path, source: Path | None) -> str:
    where = f"{source}: {INCLUDE}" if source else "command line"
    if recipe.is_dir() and (recipe / CONFIG_FILE).is_file():
        return f"{where}: {recipe} is a run; expected a recipe, such as {recipe / CONFIG_FILE} (and --run {recipe})"
    if recipe.is_dir():
        return f"{where}: {recipe} is a directory; expected a recipe, a YAML file"
    known = sorted(str(path) for path in [*recipe.parent.glob("*.yaml"), *Path("configs").glob("*.yaml")])
    nearest = difflib.get_close_matches(str(recipe), known, n=1, cutoff=0) or ["a path to a YAML file"]
    return f"{where}: no recipe {recipe}; nearest: {nearest[0]}"
