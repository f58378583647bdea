"""``fr3e sweep``: combinations of settings, each run in its own process and directory."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from fr3e_jax.cli.arguments import number, positive
from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration import Config, ConfigError
from fr3e_jax.configuration.load import load_variants
from fr3e_jax.shipped_files import find_recipe
from fr3e_jax.stores.objects import is_remote
from fr3e_jax.verbs.sweep_axes import combinations, parse_axes, recipes_of
from fr3e_jax.verbs.sweep_record import take_over, unfinished_sweep, write_record
from fr3e_jax.verbs.sweep_runs import RECIPE, Run, as_overrides, execute, make_runs, safe_name
from fr3e_jax.verbs.sweep_table import print_end, print_table


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--sample", type=positive, default=0, metavar="N", help="N of the combinations, at random")
    parser.add_argument(
        "--hours",
        type=number(float, "a number of hours above 0", lambda hours: hours > 0),
        default=float("inf"),
        metavar="H",
        help="begin no run after H hours; --hours 0.5 is 30 min",
    )
    parser.add_argument("--sample-seed", type=int, default=0, metavar="S", help="seed of that draw (default 0)")
    parser.add_argument(
        "--new",
        action="store_true",
        help="begin a new sweep; else the same command goes on with an unfinished one",
    )
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="runs at the same time (default 1)")
    parser.add_argument("--verb", choices=("train", "sft", "rft"), default="train", help="verb to run (default train)")


def run(arguments: argparse.Namespace) -> int:
    """Check every combination, run ``--jobs`` of them at a time, write ``sweep.json`` and print a table.

    The recipe may be a folder: its recipes, in the order of their names, are an axis as well (an experiment). A sweep
    with the same recipe and combinations that has not succeeded whole goes on: finished runs are skipped, interrupted
    ones resumed.

    Returns:
      0 if every run ended with 0, else 1.

    Raises:
      ConfigError: a combination is not valid; nothing has been started.
    """
    recipe, verb = str(find_recipe(arguments.recipe)), arguments.verb
    experiment = Path(recipe).is_dir()
    axes = {RECIPE: recipes_of(recipe)} | parse_axes(arguments.overrides)
    drawn = combinations(axes, arguments.sample, arguments.sample_seed)
    first = next(_checked(drawn[:1], verb))
    output, name = first.runtime.output_dir, Path(recipe).name if experiment else first.name
    if is_remote(output):
        raise ConfigError(
            f"runtime.output_dir={output} is in an object store, and a sweep keeps its table in a folder; name a "
            "folder, and give single runs an address: fr3e train RECIPE runtime.run_dir=ADDRESS"
        )
    varied = [key for key in axes if len({settings[key] for settings in drawn}) > 1]
    fresh = arguments.new or arguments.dry_run
    former = None if fresh else unfinished_sweep(output, name, recipe, verb, drawn)
    folder = former or sweep_folder(output, name)
    runs = make_runs(verb, drawn, folder, varied)
    for run, _ in zip(runs, _checked(drawn, verb), strict=True):
        if arguments.dry_run:
            print(shlex.join(run.command))
    if arguments.dry_run:
        return 0
    if not experiment:
        for run in runs:
            del run.settings[RECIPE]
    shown = varied or list(runs[0].settings)
    if former:
        take_over(former, runs)
        done = sum(run.is_finished for run in runs)
        print(f"going on with {folder}: {done} of {len(runs)} runs are finished (--new begins another sweep)")
    else:
        folder.mkdir(parents=True)
        print(f"{len(runs)} runs in {folder}")
    if constant := [f"{key}={value}" for key, value in runs[0].settings.items() if key not in shown]:
        print(f"all with {' '.join(constant)}")

    def ended(run: Run) -> None:
        write_record(folder, recipe, verb, runs, running=True)
        print_end(run, runs, shown)

    write_record(folder, recipe, verb, runs, running=True)
    unfinished = [run for run in runs if not run.is_finished]
    completed = execute(unfinished, arguments.jobs, ended, arguments.hours * 3600)
    write_record(folder, recipe, verb, runs, running=False)
    print_table(runs, shown)
    print(f"{folder / 'sweep.json'} has all results; each run's output is in its log file.")
    if completed and all(run.is_finished for run in runs):
        return 0
    print("the same command goes on with this sweep")
    return 1


def _checked(combinations: Sequence[dict[str, str]], verb: str) -> Iterator[Config]:
    """The settings of each combination, in order; raises ConfigError at the first that is not valid."""
    for recipe, of_recipe in itertools.groupby(combinations, key=lambda settings: settings[RECIPE]):
        overrides = ([*as_overrides(settings), "runtime.run_dir=its"] for settings in of_recipe)  # so any name will do
        yield from load_variants(recipe, overrides, training=verb == "train")


def sweep_folder(output_dir: str, name: str) -> Path:
    """A new directory for the sweep, named by recipe or experiment and time."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path(output_dir).expanduser().absolute() / f"sweep-{safe_name(name)}-{stamp}"


VERB = Verb("fr3e sweep configs/demo_fr3e.yaml seed=0,1,2 explore.num_anchors=2,4 --dry-run", declare, run)
