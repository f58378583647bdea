"""``fr3e methods``: the catalogue of methods, from the headers of the recipes."""

from __future__ import annotations

import argparse
from pathlib import Path

from fr3e_jax.cli.arguments import declare_page
from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration import ConfigError
from fr3e_jax.methods import list_methods, write_table


def run(arguments: argparse.Namespace) -> int:
    """List the methods, or write their table into a page."""
    try:
        write_table(Path(arguments.write)) if arguments.write else print(list_methods())
    except OSError as error:
        raise ConfigError(
            f"cannot write --write {arguments.write}: {error.strerror}; name a page that exists"
        ) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return 0


VERB = Verb("fr3e methods --write docs/users/methods.md", declare_page, run, recipe=False)
