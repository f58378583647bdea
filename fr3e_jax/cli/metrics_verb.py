"""``fr3e metrics``: what every number of metrics.jsonl means."""

from __future__ import annotations

import argparse
from pathlib import Path

from fr3e_jax.cli.local_paths import on_this_machine
from fr3e_jax.configuration import ConfigError


def declare_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", nargs="?", default="", help="only metrics whose names have this part, such as clip")
    parser.add_argument(
        "--write",
        type=on_this_machine,
        metavar="PAGE",
        help="write the whole table into a documentation page, between its two markers",
    )


def show_metrics(arguments: argparse.Namespace) -> int:
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
