"""``fr3e methods``: the recipes that come with the package, and the methods in their headers."""

from __future__ import annotations

import argparse

from fr3e_jax.cli.arguments import declare_page, list_or_renew
from fr3e_jax.cli.parser import Verb
from fr3e_jax.methods import list_methods, markdown_table


def run(arguments: argparse.Namespace) -> int:
    """List the methods, or write their table into a page."""
    return list_or_renew("methods", list_methods, markdown_table, arguments.write)


VERB = Verb("fr3e methods --write docs/users/methods.md", declare_page, run, recipe=False)
