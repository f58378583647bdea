"""``fr3e metrics``: the meaning of every number in metrics.jsonl."""

from __future__ import annotations

import argparse
from pathlib import Path

from fr3e_jax.cli.arguments import declare_page, renew_table
from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration.error_conversion import as_config_error


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("part", nargs="?", default="", help="only metrics whose names have this part, such as clip")
    declare_page(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the metrics, or write their table into a page."""
    from fr3e_jax.runs.metrics_page import list_metrics, metrics_table

    with as_config_error():
        if arguments.write:
            renew_table("metrics", metrics_table(), Path(arguments.write))
        else:
            print(list_metrics(arguments.part))
    return 0


VERB = Verb("fr3e metrics clip", declare, run, recipe=False)
