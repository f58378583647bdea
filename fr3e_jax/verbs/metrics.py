"""``fr3e metrics``: the meaning of every number in metrics.jsonl."""

from __future__ import annotations

import argparse
from functools import partial

from fr3e_jax.cli.arguments import declare_page, list_or_renew
from fr3e_jax.cli.parser import Verb


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("part", nargs="?", default="", help="only metrics whose names have this part, such as clip")
    declare_page(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the metrics, or write their table into a page."""
    from fr3e_jax.runs.metrics_page import list_metrics, metrics_table

    return list_or_renew("metrics", partial(list_metrics, arguments.part), metrics_table, arguments.write)


VERB = Verb("fr3e metrics clip", declare, run, recipe=False)
