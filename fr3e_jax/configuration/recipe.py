"""Recipes: YAML files of settings that may include one another, read into layers that name their file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fr3e_jax.configuration.peer_names import instead, our_names
from fr3e_jax.configuration.provenance import CONFIG_FILE, FIRST_LINE
from fr3e_jax.configuration.settings import ConfigError, nearest_paths, sections, settings
from fr3e_jax.shipped_files import find_recipe, recipe_names

INCLUDE = "include"
CODE = ("data.task", "data.verifier", "tools.kind", "environment.kind", "loss.function", "advantage.base_estimator")
"""Settings that may name a file of the user's code."""
FILES = ("model.path", "model.tokenizer", "teacher.path", "data.root", "data.template")
"""Settings that name files to read, or an address in an object store."""
TEXTS = ("judge.prompt",)
"""Settings that name local texts."""


@dataclass(frozen=True)
class Layer:
    """Leaf values by dotted path, and the file or the command line that gives them. Later layers win."""

    source: str
    values: dict[str, Any]


def read_recipe(recipe: Path, including: tuple[Path, ...] = ()) -> list[Layer]:
    """The layers of a recipe, included files first. Includes are relative to the file that names them.

    An include that is not there may name a recipe of the package. A file or folder that a setting of `CODE`, `FILES` or
    `TEXTS` names is relative to the recipe as well if it exists there, and else to the working directory.

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
    values = flatten(content, str(recipe))
    if not values and not included:
        raise ConfigError(
            f"{recipe}: has no settings; expected sections, for example 'explore: {{num_anchors: 4}}', or a recipe to "
            "begin from, 'include: demo'"
        )
    layers = [layer for name in included for layer in read_recipe(_included(recipe, name), (*including, recipe))]
    if not recipe.read_bytes().startswith(FIRST_LINE.encode()):  # a run's settings keep the paths of its start
        values = {path: _beside(recipe, path, value) for path, value in values.items()}
    return [*layers, Layer(str(recipe), values)]


def _included(recipe: Path, name: str) -> Path:
    beside = recipe.parent / name
    shipped = find_recipe(name)
    return shipped if not beside.exists() and shipped.exists() else beside


def _beside(recipe: Path, path: str, value: Any) -> Any:
    """The value of a setting; a path of an input as seen from the recipe if it leads to something there."""
    if path not in CODE + FILES + TEXTS or not isinstance(value, str) or not value or Path(value).is_absolute():
        return value
    file, colon, name = value.rpartition(":") if path in CODE else (value, "", "")
    if not file or (path in CODE and not file.endswith(".py")) or not (recipe.parent / file).exists():
        return value
    if path == "data.template" and not (recipe.parent / file).is_file():
        return value  # a template's name, and a folder of that name
    return f"{(recipe.parent / file).resolve()}{colon}{name}"


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    if isinstance(content, dict) and len(content) == 1 and path.read_text().strip() == next(iter(content)):
        raise ConfigError(
            f"{path}: is text without settings; expected sections, for example 'explore: {{num_anchors: 4}}'"
        )
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
    nearest = nearest_paths(path, [*settings(), *sections()])
    if ours := our_names(path):
        advice = f"here it is {' and '.join(ours)}"
    elif there := instead(path):
        return f"{path} is not a setting; {there}"
    elif nearest:
        advice = f"nearest: {' or '.join(nearest)}"
    else:
        advice = f"sections: {', '.join(name for name in sections() if '.' not in name)}"
    return f"{path} is not a setting; {advice}; `fr3e help all` lists all"


def _missing(recipe: Path, source: Path | None) -> str:
    where = f"{source}: {INCLUDE}" if source else "command line"
    if recipe.is_dir() and (recipe / CONFIG_FILE).is_file():
        return f"{where}: {recipe} is a run; expected a recipe, such as {recipe / CONFIG_FILE} (and --run {recipe})"
    if recipe.is_dir():
        return f"{where}: {recipe} is a directory; expected a recipe, a YAML file"
    names = sorted(str(path) for path in [*recipe.parent.glob("*.yaml"), *Path("configs").glob("*.yaml")])
    names += recipe_names()
    nearest = difflib.get_close_matches(str(recipe), names, n=1, cutoff=0.7)
    nearest = nearest or [name for name in recipe_names() if name.rpartition("/")[2] == recipe.stem]
    advice = f"nearest: {nearest[0]}" if nearest else "expected a path, or a name that `fr3e methods` lists"
    return f"{where}: no recipe {recipe}; {advice}"
