"""``fr3e methods``: the catalogue of methods, from the headers of the recipes."""

from __future__ import annotations

import argparse

from fr3e_jax.cli.arguments import declare_page, print_or_write
from fr3e_jax.cli.parser import Verb
from fr3e_jax.methods import list_methods, write_table


def run(arguments: argparse.Namespace) -> int:
    """List the methods, or write their table into a page."""
    return print_or_write(list_methods, write_table, arguments.write)


VERB = Verb("fr3e methods --write docs/users/methods.md", declare_page, run, recipe=False)
