"""``fr3e recipes`` and ``fr3e new``: the recipes that come with the package, and a recipe of one's own."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fr3e_jax.cli.local_paths import on_this_machine
from fr3e_jax.configuration import Config, ConfigError, load_config
from fr3e_jax.configuration.describe import FIRST
from fr3e_jax.configuration.settings import as_yaml, settings
from fr3e_jax.shipped_files import find_recipe, recipe_names, root


def declare_recipes(parser: argparse.ArgumentParser) -> None:
    """The verb has no options of its own."""


def list_recipes(arguments: argparse.Namespace) -> int:
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
        return "recipes to compare: " + ", ".join(sorted(one.stem for one in path.glob("*.yaml")))
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").removeprefix("Method: ") if first.startswith("# ") else ""


def declare_new(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("file", type=on_this_machine, metavar="FILE", help="YAML file to write, for example my.yaml")
    parser.add_argument("--from", dest="base", default="demo", metavar="RECIPE", help="recipe to begin with (demo)")


def write_new(arguments: argparse.Namespace) -> int:
    """Write a recipe that includes another, with the settings that most runs change; return the exit code.

    Raises:
      ConfigError: the file exists already or cannot be written, or there is no such recipe.
    """
    path, base = Path(arguments.file).expanduser(), find_recipe(arguments.base)
    config = load_config(arguments.base, training=False)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path} is no YAML file; expected a name such as {path.name}.yaml")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(_text(path, arguments.base, base, config))
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; choose another name, or remove it first") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another place") from error
    print(f"{path}: change it, then: fr3e train {path}")
    return 0


def _text(path: Path, named: str, base: Path, config: Config) -> str:
    shipped = named in recipe_names()
    include = named if shipped else str(base.resolve())
    name = re.sub(r"\W+", "_", path.stem)
    lines = [f"# Begun from {named}. `fr3e help SECTION` lists the settings of a section, `fr3e help all` all of them."]
    lines += [f"include: {include}", f"name: {name}", "", "# The settings that most runs change, as they are there:"]
    section = ""
    for setting in FIRST:
        part, _, field = setting.partition(".")
        if part != section:
            lines.append(f"# {part}:")
            section = part
        lines.append(f"#   {field}: {as_yaml(getattr(getattr(config, part), field))}  # {settings()[setting].meaning}")
    return "\n".join(lines) + "\n"
