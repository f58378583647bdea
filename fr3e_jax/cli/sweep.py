"""A sweep: all combinations of comma-separated values, each run in its own process and directory."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.load import parse_override
from fr3e_jax.shipped_files import find_recipe

POLL_SECONDS = 0.1
RECIPE = "recipe"  # the axis of an experiment's recipes


@dataclass
class Run:
    """One combination. ``exit_code`` and ``seconds`` are None until it ends, ``summary`` if it wrote none."""

    settings: dict[str, str]
    run_dir: str
    log: str
    command: list[str]
    exit_code: int | None = None
    seconds: float | None = None
    summary: dict[str, Any] | None = None


def sweep(recipe: str, overrides: Sequence[str], verb: str = "train", jobs: int = 1, dry_run: bool = False) -> int:
    """Check every combination, run ``jobs`` of them at a time, write ``sweep.json`` and print a table.

    ``recipe`` may be a folder: its recipes, in the order of their names, are an axis as well (an experiment).

    Returns:
      0 if every run ended with 0, else 1.

    Raises:
      ConfigError: a combination is not valid; nothing has been started.
    """
    recipe = str(find_recipe(recipe))
    several = Path(recipe).is_dir()
    axes = {RECIPE: recipes_of(recipe)} | parse_axes(overrides)
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    configs = [load_config(c[RECIPE], as_overrides(c), training=verb == "train") for c in combinations]
    folder = sweep_folder(configs[0].runtime.output_dir, Path(recipe).name if several else configs[0].name)
    varied = [key for key, values in axes.items() if len(values) > 1]
    runs = make_runs(verb, combinations, folder, varied)
    if not several:
        for run in runs:
            del run.settings[RECIPE]
        del axes[RECIPE]
    if dry_run:
        print("\n".join(shlex.join(run.command) for run in runs))
        return 0
    folder.mkdir(parents=True)
    print(f"{len(runs)} runs in {folder}")
    completed = execute(runs, jobs, finished=lambda run: _record(folder, recipe, verb, runs, run))
    print_table(runs, list(axes))
    print(f"{folder / 'sweep.json'} has all results; each run's output is in its log file.")
    return 0 if completed and all(run.exit_code == 0 for run in runs) else 1


def recipes_of(recipe: str) -> list[str]:
    """The recipe itself, or the recipes of a folder.

    Raises:
      ConfigError: the folder has none.
    """
    folder = Path(recipe).expanduser()
    if not folder.is_dir():
        return [recipe]
    found = [str(path) for path in sorted(folder.glob("*.yaml"))]
    if not found:
        raise ConfigError(f"{recipe} is a folder without recipes; expected *.yaml files in it, or name one recipe")
    return found


def parse_axes(overrides: Sequence[str]) -> dict[str, list[str]]:
    """The values of every key, in the order given."""
    axes: dict[str, list[str]] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            parse_override(override)  # raises, and says what a setting looks like
        if key in axes:
            raise ConfigError(f"command line: {key} is given twice; write {key}={','.join(axes[key])},{text}")
        if key == "runtime.run_dir":
            raise ConfigError("command line: a sweep names the run directories itself; set runtime.output_dir instead")
        axes[key] = split_values(text)
    return axes


def split_values(text: str) -> list[str]:
    """Split at commas outside brackets and quotes: ``[1,2],[3]`` is two values, ``'a,b'`` one."""
    values, closers, quote = [""], [], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and not values[-1]:
            quote = character
        elif character in "[{(":
            closers.append("]})"["[{(".index(character)])
        elif closers and character == closers[-1]:
            closers.pop()
        elif character == "," and not closers:
            values.append("")
            continue
        values[-1] += character
    if quote or closers:
        raise ConfigError(f"command line: {text!r} lacks a closing {quote or closers[-1]}")
    return values


def as_overrides(settings: dict[str, str]) -> list[str]:
    """The settings for the command line, without the name of the recipe."""
    return [f"{key}={value}" for key, value in settings.items() if key != RECIPE]


def sweep_folder(output_dir: str, name: str) -> Path:
    """A new directory for the sweep, named by recipe or experiment and time."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path(output_dir).expanduser().absolute() / f"sweep-{safe_name(name)}-{stamp}"


def safe_name(text: str, longest: int = 120) -> str:
    """The text as part of a file name: characters that are special to file systems or shells become ``_``."""
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)[:longest]


def make_runs(verb: str, combinations: list[dict], folder: Path, varied: Sequence[str]) -> list[Run]:
    """The runs with their directories and commands. The ``varied`` settings, and recipes, label the directories."""
    runs = []
    for index, settings in enumerate(combinations):
        chosen = [Path(settings[RECIPE]).stem] if RECIPE in varied else []
        label = safe_name(",".join(chosen + as_overrides({key: settings[key] for key in varied})))
        run_dir = folder / f"{index:03d}-{label}".rstrip("-")
        overrides = [*as_overrides(settings), f"runtime.run_dir={run_dir}"]
        command = [sys.executable, "-m", "fr3e_jax", verb, settings[RECIPE], *overrides]
        runs.append(Run(settings, str(run_dir), str(run_dir / "log.txt"), command))
    return runs


def execute(runs: list[Run], jobs: int, finished: Callable[[Run], None]) -> bool:
    """Run ``jobs`` processes at a time until all have ended. If interrupted, stop them and return False."""
    waiting = deque(runs)
    running: list[tuple[Run, subprocess.Popen, float]] = []
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a killed sweep stops its runs
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.popleft()
                running.append((run, _start(run), time.monotonic()))
            time.sleep(POLL_SECONDS)
            for entry in [entry for entry in running if entry[1].poll() is not None]:
                running.remove(entry)
                _end(*entry, finished)
        return True
    except KeyboardInterrupt:
        for _, process, _ in running:
            process.terminate()
        for entry in running:
            entry[1].wait()
            _end(*entry, finished)
        return False
    finally:
        signal.signal(signal.SIGTERM, former)


def _start(run: Run) -> subprocess.Popen:
    Path(run.run_dir).mkdir()
    with open(run.log, "w") as log:
        return subprocess.Popen(run.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def _end(run: Run, process: subprocess.Popen, started: float, finished: Callable[[Run], None]) -> None:
    run.exit_code, run.seconds = process.returncode, round(time.monotonic() - started, 1)
    try:
        run.summary = json.loads(Path(run.run_dir, "summary.json").read_text())
    except (OSError, ValueError):  # a failed run may have written no summary, or half of one
        run.summary = None
    finished(run)


def _record(folder: Path, recipe: str, verb: str, runs: list[Run], run: Run) -> None:
    settings = " ".join(
        [*([Path(run.settings[RECIPE]).stem] if RECIPE in run.settings else []), *as_overrides(run.settings)]
    )
    where = "" if run.exit_code == 0 else f"; see {run.log}"
    print(
        f"[{runs.index(run) + 1}/{len(runs)}] {settings}: exit {run.exit_code} after {run.seconds} s{where}", flush=True
    )
    record = {"recipe": recipe, "verb": verb, "runs": [asdict(each) for each in runs]}
    partial = folder / "sweep.json.partial"
    partial.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(partial, folder / "sweep.json")


def print_table(runs: Sequence[Run], keys: Sequence[str]) -> None:
    """Print a row per run: settings, exit code, held-out accuracy before and after, sampled tokens, seconds."""
    metric = average_name(runs)
    table = Table("#", *keys, "exit", f"{metric} before", f"{metric} after", "sampled tokens", "seconds")
    for index, run in enumerate(runs):
        summary = run.summary or {}
        cells = [
            "not run" if run.exit_code is None else str(run.exit_code),
            _cell((summary.get("before") or {}).get(metric)),
            _cell((summary.get("after") or {}).get(metric)),
            _cell(summary.get("sampled_tokens")),
            _cell(run.seconds),
        ]
        table.add_row(str(index), *(run.settings[key] for key in keys), *cells)
    TableConsole().print(table)


def average_name(runs: Sequence[Run]) -> str:
    """The name of the accuracy in the summaries that ranks checkpoints (`loop.evaluate.best_metric`)."""
    scores = [(run.summary or {}).get("after") or (run.summary or {}).get("before") or {} for run in runs]
    names = [name for score in scores for name in score]
    averages = [name for name in names if name == "avg"] or [name for name in names if name.startswith("avg@")]
    return next(iter(averages), "greedy" if "greedy" in names else "avg@k")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if value < 1 else f"{value:.1f}"
