"""One argparse parser per verb. It declares the verb's options; every other argument is a setting, key=value."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from fr3e_jax.cli.tables import fitted
from fr3e_jax.configuration import ConfigError, short_help
from fr3e_jax.configuration.peer_names import our_names
from fr3e_jax.configuration.settings import settings


@dataclass(frozen=True)
class Verb:
    """One verb of the command; its module holds it as ``VERB``.

    Attributes:
      example: an example command.
      declare: adds the verb's own options to its parser.
      run: takes the parsed arguments and returns an exit code.
      recipe: false if the verb takes no recipe, but declares its positional arguments itself.
    """

    example: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    recipe: bool = True


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports a mistake like a mistake in a recipe: in one line, with exit code 2."""

    _typed = ""

    def parsed(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse ``arguments``; options and settings may be mixed."""
        self._typed = " ".join(arguments)
        return self.parse_intermixed_args(arguments)

    def error(self, message: str) -> NoReturn:
        if "unrecognized arguments" in message and (match := re.search(r"--([\w.]+)", message)):
            name = match[1]
            # From Python 3.12 on the value counts as a positional argument, and is not in the message.
            typed = re.search(rf"--{re.escape(name)}(?![\w.])(?:[= ](?!--)(\S+))?", self._typed)
            value = typed[1] if typed else ""
            if typed and typed[0] not in message:
                message = message.replace(f"--{name}", typed[0], 1)
            options = [option for action in self._actions for option in action.option_strings]
            if name in settings() or our_names(name):
                setting = name if name in settings() else our_names(name)[0]
                message += f" (settings have no dashes: {setting}={value or 'value'})"
            elif near := difflib.get_close_matches(f"--{name}", options, n=1, cutoff=0.7):
                message += f" (nearest: {near[0]})"
            else:
                message += f" (settings have no dashes: section.field={value or 'value'})"
        raise ConfigError(f"{message}; `{self.prog} --help` shows the usage")

    def print_help(self, file: Any = None) -> None:
        """Print the help text; argparse's own function hides a failure to do so."""
        print(fitted(self.format_help()), end="", file=file)


def help_width() -> int:
    """Characters of a line of help: as wide as the terminal, within reason."""
    return min(max(shutil.get_terminal_size((120, 24)).columns, 60), 160)


def build_parser(name: str, purpose: str, verb: Verb) -> OneLineParser:
    """The parser of one verb. The help text of ``train`` also lists the settings that most runs change."""
    ending = f"example: {verb.example}\n\n"
    if name == "train":
        ending += "settings, in a recipe or as section.field=value (later wins):\n\n" + short_help(help_width())
    elif verb.recipe:
        ending += "`fr3e help all` lists all the settings, `fr3e help SECTION` those of a section."
    parser = OneLineParser(
        prog=f"fr3e {name}",
        description=purpose,
        epilog=ending,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if verb.recipe:
        parser.add_argument("recipe", metavar="RECIPE", help="YAML file of settings, for example configs/demo.yaml")
        parser.add_argument(
            "overrides", metavar="key=value", nargs="*", default=[], help="settings that win over the recipe's"
        )
    verb.declare(parser)
    return parser
