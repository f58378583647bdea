"""Types and options of arguments that several verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.run_directory import atomic_file
from fr3e_jax.stores.objects import is_remote


def number(kind: Callable[[str], Any], expected: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """A parser of numbers for argparse: ``kind`` reads them, and ``accepts`` is true of those that are ``expected``."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return value

    return parse


positive = number(int, "a whole number of at least 1", lambda value: value >= 1)
share = number(float, "a share above 0 and up to 1", lambda value: 0 < value <= 1)


def steps(text: str) -> tuple[int, ...]:
    """Parse a list of steps such as ``10,20``, for argparse."""
    try:
        return tuple(int(step) for step in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of steps; expected one like 10 or 10,20") from None


def on_this_machine(text: str) -> str:
    """Parse a path that a command reads or writes itself, for argparse; an address in an object store is refused."""
    if is_remote(text):
        raise argparse.ArgumentTypeError(
            f"{text} is in an object store; expected a file or folder of this machine: name one, and copy it "
            "(gsutil cp -r, aws s3 cp --recursive)"
        )
    return text


def declare_print_config(parser: argparse.ArgumentParser) -> None:
    """``--print-config``, which `run_selection.print_config` serves."""
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings and exit")


def declare_training(parser: argparse.ArgumentParser) -> None:
    """The options of a verb that trains: ``--resume``, ``--continue``, ``--allow-changes``, ``--print-config``."""
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN_DIR",
        help="continue a run: RUN_DIR, else runtime.run_dir, else the newest run of this recipe's name; "
        "key=value settings win over the saved ones",
    )
    parser.add_argument(
        "--continue",
        dest="proceed",
        action="store_true",
        help="start the run in runtime.run_dir, or resume it if it was started; so the same command continues "
        "an interrupted run",
    )
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="with --resume: go on although seed, data or tokenizer differ from the checkpoint's",
    )
    declare_print_config(parser)


def declare_run_to_read(parser: argparse.ArgumentParser, purpose: str) -> None:
    """``--run``: the weights of a run in place of the recipe's."""
    parser.add_argument(
        "--run", metavar="RUN_DIR", help=f"{purpose} the newest checkpoint of this run, with the run's model settings"
    )


def write_output(path: str, text: str) -> None:
    """Write a file that an option names, whole or not at all.

    Raises:
      ConfigError: it cannot be written.
    """
    try:
        with atomic_file(Path(path).expanduser()) as stream:
            stream.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error}); expected a file in a folder that you may use"
        ) from error
