"""``fr3e compile``: which programs a run will need, and compiling them before it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fr3e_jax.cli.arguments import positive
from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration import Config, load_config

if TYPE_CHECKING:
    from fr3e_jax.verbs.compile_programs import Compiled


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--steps", type=positive, default=3, metavar="N", help="rehearse the first N steps of the run (default 3)"
    )
    parser.add_argument("--list", action="store_true", help="show the programs; compile none")
    parser.add_argument("--json", action="store_true", help="print them as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Forecast the programs of a recipe's run, compile them into its cache, and print them; return the exit code."""
    config = load_config(arguments.recipe, arguments.overrides, training=False)
    from fr3e_jax.verbs import compile_programs

    return compile_programs.compile_recipe(config, arguments.steps, arguments.list, _Printed(config, arguments))


class _Printed:
    """Prints the programs as they become ready, and in the end all of them."""

    def __init__(self, config: Config, arguments: argparse.Namespace):
        self._config, self._arguments, self._start = config, arguments, time.perf_counter()

    def begins(self, programs: int) -> None:
        print(f"fr3e compile: {programs} programs", file=sys.stderr)

    def one(self, compiled: Compiled) -> None:
        line = f"  {compiled.seconds:6.1f} s  {compiled.name}  {compiled.sizes}"
        print(line, file=sys.stderr, flush=True)

    def all(self, compiled: Sequence[Compiled], cached: int | None) -> None:
        rollout = self._config.rollout
        if self._arguments.json:
            print(json.dumps([one.as_json() for one in compiled], indent=2))
            return
        if cached is None:
            width = max(len(one.name) for one in compiled)
            for one in compiled:
                print(f"{one.calls:6d} calls  {one.name:<{width}}  {one.sizes}")
        known = "" if cached is None else f", {cached} of them were in the cache already"
        print(
            f"{len(compiled)} programs in the first {self._arguments.steps} steps{known}; "
            f"{time.perf_counter() - self._start:.0f} s. The forecast expects responses of "
            f"{rollout.expected_tokens or rollout.max_response_tokens // 2} tokens (rollout.expected_tokens)."
        )


VERB = Verb("fr3e compile configs/demo.yaml --list", declare, run)
