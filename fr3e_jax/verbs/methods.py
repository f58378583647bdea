"""``fr3e methods``: the recipes that come with the package, and the methods in their headers."""

from __future__ import annotations

import argparse
from pathlib import Path

from fr3e_jax.cli.arguments import declare_page, renew_table
from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.methods import list_methods, markdown_table


def run(arguments: argparse.Namespace) -> int:
    """List the methods, or write their table into a page."""
    with as_config_error():
        if arguments.write:
            renew_table("methods", markdown_table(), Path(arguments.write))
        else:
            print(list_methods())
    return 0


VERB = Verb("fr3e methods --write docs/users/methods.md", declare_page, run, recipe=False)
