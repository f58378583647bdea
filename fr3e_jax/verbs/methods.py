"""``fr3e methods``: the recipes that come with the package, and the methods in their headers."""

from __future__ import annotations

import argparse

from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.tables import fitted
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.methods import list_methods


def declare(parser: argparse.ArgumentParser) -> None:
    """The verb has no options."""


def run(arguments: argparse.Namespace) -> int:
    """List the methods."""
    with as_config_error():
        text = list_methods()
    print(fitted(text))
    return 0


VERB = Verb("fr3e methods", declare, run, recipe=False)
