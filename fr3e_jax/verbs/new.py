"""``fr3e new``: a recipe of the user's own, which includes another one."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fr3e_jax.cli.arguments import on_this_machine
from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration import Config, ConfigError, load_config
from fr3e_jax.configuration.describe import FIRST
from fr3e_jax.configuration.settings import as_yaml, settings
from fr3e_jax.shipped_files import find_recipe, recipe_names


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("file", type=on_this_machine, metavar="FILE", help="YAML file to write, for example my.yaml")
    parser.add_argument("--from", dest="base", default="demo", metavar="RECIPE", help="recipe to begin with (demo)")


def run(arguments: argparse.Namespace) -> int:
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
        parent, _, field = setting.partition(".")
        if parent != section:
            lines.append(f"# {parent}:")
            section = parent
        lines.append(
            f"#   {field}: {as_yaml(getattr(getattr(config, parent), field))}  # {settings()[setting].meaning}"
        )
    return "\n".join(lines) + "\n"


VERB = Verb("fr3e new my.yaml --from demo", declare, run, recipe=False)
