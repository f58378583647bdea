"""``fr3e metrics``: the meaning of every number in metrics.jsonl."""

from __future__ import annotations

import argparse
from pathlib import Path

from fr3e_jax.cli.arguments import declare_page
from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration import ConfigError


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("part", nargs="?", default="", help="only metrics whose names have this part, such as clip")
    declare_page(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the metrics, or write their table into a page."""
    from fr3e_jax.runs.metrics_page import list_metrics, write_metrics_table

    try:
        write_metrics_table(Path(arguments.write)) if arguments.write else print(list_metrics(arguments.part))
    except OSError as error:
        raise ConfigError(
            f"cannot write --write {arguments.write}: {error.strerror}; name a page that exists"
        ) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return 0


VERB = Verb("fr3e metrics clip", declare, run, recipe=False)
