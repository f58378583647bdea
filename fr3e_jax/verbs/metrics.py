"""``fr3e metrics``: the meaning of every number in metrics.jsonl."""

from __future__ import annotations

import argparse

from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.tables import fitted
from fr3e_jax.configuration.error_conversion import as_config_error


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("part", nargs="?", default="", help="only metrics whose names have this part, such as clip")


def run(arguments: argparse.Namespace) -> int:
    """List the metrics."""
    from fr3e_jax.runs.metrics_page import list_metrics

    with as_config_error():
        text = list_metrics(arguments.part)
    print(fitted(text))
    return 0


VERB = Verb("fr3e metrics clip", declare, run, recipe=False)
