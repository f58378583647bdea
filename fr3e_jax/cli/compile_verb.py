"""``fr3e compile``: which programs a run will need, and compiling them before it."""

from __future__ import annotations

import argparse
import json
import sys
import time

from fr3e_jax.cli.parsers import positive
from fr3e_jax.configuration import load_config


def declare_compile(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--steps", type=positive, default=3, metavar="N", help="rehearse the first N steps of the run (default 3)"
    )
    parser.add_argument("--list", action="store_true", help="show the programs; compile none")
    parser.add_argument("--json", action="store_true", help="print them as JSON")


def compile_recipe(arguments: argparse.Namespace) -> int:
    """Forecast the programs of a recipe's run, compile them into its cache, and print them; return the exit code."""
    config = load_config(arguments.recipe, arguments.overrides, training=False)
    from fr3e_jax.verbs.compile_programs import compile_programs, forecast_programs, listed

    start = time.perf_counter()
    calls = forecast_programs(config, arguments.steps)
    if not arguments.list:
        print(f"fr3e compile: {len(calls)} programs", file=sys.stderr)
        tell = lambda one: print(f"  {one.seconds:6.1f} s  {one.name}  {one.sizes}", file=sys.stderr, flush=True)
    found, there = (listed(calls), None) if arguments.list else compile_programs(calls, tell)
    if arguments.json:
        print(json.dumps([one.as_json() for one in found], indent=2))
        return 0
    if arguments.list:
        width = max(len(one.name) for one in found)
        for one in found:
            print(f"{one.calls:6d} calls  {one.name:<{width}}  {one.sizes}")
    seconds = time.perf_counter() - start
    known = "" if there is None else f", {there} of them were in {config.runtime.compilation_cache} already"
    print(
        f"{len(found)} programs in the first {arguments.steps} steps{known}; {seconds:.0f} s. The forecast expects "
        f"responses of {config.rollout.expected_tokens or config.rollout.max_response_tokens // 2} tokens "
        "(rollout.expected_tokens)."
    )
    return 0
