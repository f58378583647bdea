"""``fr3e report``: write the page of a run, or serve it while the run goes on."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from fr3e_jax.cli.arguments import number, on_this_machine
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import run_to_read
from fr3e_jax.configuration import ConfigError
from fr3e_jax.stores.objects import is_remote

PORT = 8500
port = number(int, "a port from 0 to 65535", lambda value: 0 <= value <= 65535)


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("run", metavar="RUN", help="directory of a run; it may still be training")
    parser.add_argument(
        "--output", type=on_this_machine, metavar="FILE", help="write the page there (default: RUN/report.html)"
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="serve the page on this machine's loopback interface, with newer steps as they come, until Ctrl-C",
    )
    parser.add_argument(
        "--port", type=port, default=PORT, metavar="N", help=f"port of --serve (default {PORT}; 0: any free one)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write or serve the page.

    Raises:
      ConfigError: there is no run, a file of it is damaged, the page cannot be written, or the port is in use.
    """
    from fr3e_jax.studies.reports.run_page import run_page, write_report
    from fr3e_jax.studies.reports.server import serve

    if arguments.serve:
        if arguments.output:
            raise ConfigError("--serve writes no file; leave out --output")
        if is_remote(arguments.run):
            raise ConfigError(
                f"{arguments.run} is in an object store, and --serve follows a folder; leave out --serve, or serve the "
                "working copy on the machine that trains"
            )
        serve(Path(arguments.run).expanduser(), partial(run_page, live=True), arguments.port)
        return 0
    try:
        path = write_report(run_to_read(arguments.run), arguments.output)
    except OSError as error:
        raise ConfigError(f"the page cannot be written: {error}") from error
    print(f"{path}  ({path.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    return 0


VERB = Verb("fr3e report runs/demo-20250101-120000 --serve", declare, run, recipe=False)
