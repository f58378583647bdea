"""A sweep: all combinations of comma-separated values, each run in its own process and directory."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import platform
import random
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
from functools import partial
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


def sweep(
    recipe: str,
    overrides: Sequence[str],
    verb: str = "train",
    jobs: int = 1,
    dry_run: bool = False,
    *,
    sample: int = 0,
    sample_seed: int = 0,
    fresh: bool = False,
) -> int:
    """Check every combination, run ``jobs`` of them at a time, write ``sweep.json`` and print a table.

    ``recipe`` may be a folder: its recipes, in the order of their names, are an axis as well (an experiment). A sweep
    with the same recipe and combinations that has not succeeded whole goes on: finished runs are skipped, interrupted
    ones resumed.

    Args:
      recipe: the recipe, or the folder.
      overrides: ``key=value,value``.
      verb: what to run.
      jobs: runs at the same time.
      dry_run: print the commands and run nothing.
      sample: run so many of the combinations, drawn at random; 0: all.
      sample_seed: of that draw.
      fresh: begin a new sweep, although one could go on.

    Returns:
      0 if every run ended with 0, else 1.

    Raises:
      ConfigError: a combination is not valid; nothing has been started.
    """
    recipe = str(find_recipe(recipe))
    several = Path(recipe).is_dir()
    axes = {RECIPE: recipes_of(recipe)} | parse_axes(overrides)
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if sample and sample < len(combinations):
        combinations = sorted(random.Random(sample_seed).sample(combinations, sample), key=combinations.index)
    configs = [load_config(c[RECIPE], as_overrides(c), training=verb == "train") for c in combinations]
    output, name = configs[0].runtime.output_dir, Path(recipe).name if several else configs[0].name
    varied = [key for key, values in axes.items() if len(values) > 1]
    former = None if fresh or dry_run else unfinished_sweep(output, name, recipe, verb, combinations)
    folder = former or sweep_folder(output, name)
    runs = make_runs(verb, combinations, folder, varied)
    if not several:
        for run in runs:
            del run.settings[RECIPE]
        del axes[RECIPE]
    if dry_run:
        print("\n".join(shlex.join(run.command) for run in runs))
        return 0
    shown = [key for key in axes if key in varied] or list(axes)
    if former:
        take_over(former, runs)
        done = sum(run.exit_code == 0 for run in runs)
        print(f"going on with {folder}: {done} of {len(runs)} runs are finished (--new begins another sweep)")
    else:
        folder.mkdir(parents=True)
        print(f"{len(runs)} runs in {folder}")
    if constant := [f"{key}={values[0]}" for key, values in axes.items() if key not in shown]:
        print(f"all with {' '.join(constant)}")
    write = partial(_write, folder, recipe, verb, runs)
    write(running=True)
    open_runs = [run for run in runs if run.exit_code != 0]

    def finished(run: Run) -> None:
        _say(runs, run, shown)
        write(running=True)

    completed = execute(open_runs, jobs, finished)
    write(running=False)
    print_table(runs, shown)
    print(f"{folder / 'sweep.json'} and sweep.csv have all results; each run's output is in its log file.")
    if not completed:
        print("the same command goes on with this sweep")
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


def unfinished_sweep(output_dir: str, name: str, recipe: str, verb: str, combinations: list[dict]) -> Path | None:
    """The newest sweep with this recipe, verb and combinations, if it has not succeeded whole.

    Raises:
      ConfigError: a process is running it.
    """
    wanted = [{key: value for key, value in settings.items() if key != RECIPE} for settings in combinations]
    recipes = [settings[RECIPE] for settings in combinations]
    for folder in sorted(Path(output_dir).expanduser().absolute().glob(f"sweep-{safe_name(name)}-*"), reverse=True):
        record = _read(folder)
        if record is None or (record["recipe"], record["verb"]) != (recipe, verb):
            continue
        found = [{key: value for key, value in run["settings"].items() if key != RECIPE} for run in record["runs"]]
        if found != wanted or [run["command"][4] for run in record["runs"]] != recipes:
            continue
        if all(run["exit_code"] == 0 for run in record["runs"]):
            return None
        if _alive(record.get("process"), record.get("host")):
            raise ConfigError(
                f"{folder} is running in process {record['process']}; wait for it, or begin another sweep with --new"
            )
        return folder
    return None


def take_over(folder: Path, runs: list[Run]) -> None:
    """Take what the runs of an earlier process have done; those that did not succeed go on where they were."""
    for run, former in zip(runs, (_read(folder) or {"runs": []})["runs"], strict=True):
        if former["exit_code"] == 0:
            run.exit_code, run.seconds, run.summary = 0, former["seconds"], former["summary"]
        run.command.append("--continue")


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / "sweep.json").read_bytes())
        return record if {"recipe", "verb", "runs"} <= set(record) else None
    except (OSError, ValueError, TypeError):
        return None


def _alive(process: Any, host: Any) -> bool:
    if not isinstance(process, int) or host != platform.node():
        return False
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


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
        print(f"stopping {len(running)} runs, which save first; Ctrl-C again ends them at once", flush=True)
        for _, process, _ in running:
            process.terminate()
        try:
            for entry in running:
                entry[1].wait()
        except KeyboardInterrupt:
            for _, process, _ in running:
                process.kill()
        for entry in running:
            entry[1].wait()
            _end(*entry, finished)
        return False
    finally:
        signal.signal(signal.SIGTERM, former)


def _start(run: Run) -> subprocess.Popen:
    Path(run.run_dir).mkdir(exist_ok=True)
    with open(run.log, "a") as log:
        return subprocess.Popen(run.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def _end(run: Run, process: subprocess.Popen, started: float, finished: Callable[[Run], None]) -> None:
    run.exit_code, run.seconds = process.returncode, round(time.monotonic() - started, 1)
    try:
        run.summary = json.loads(Path(run.run_dir, "summary.json").read_text())
    except (OSError, ValueError):  # a failed run may have written no summary, or half of one
        run.summary = None
    finished(run)


def _say(runs: list[Run], run: Run, shown: Sequence[str]) -> None:
    varied = {key: value for key, value in run.settings.items() if key in shown}
    settings = " ".join([*([Path(varied[RECIPE]).stem] if RECIPE in varied else []), *as_overrides(varied)])
    where = "" if run.exit_code == 0 else f"; see {run.log}"
    print(
        f"[{runs.index(run) + 1}/{len(runs)}] {settings}: exit {run.exit_code} after {run.seconds} s{where}", flush=True
    )


def _write(folder: Path, recipe: str, verb: str, runs: list[Run], *, running: bool) -> None:
    """Write ``sweep.json`` and ``sweep.csv``, whole or not at all."""
    owner = {"process": os.getpid(), "host": platform.node()} if running else {}
    record = {"recipe": recipe, "verb": verb, **owner, "runs": [asdict(each) for each in runs]}
    table = io.StringIO()
    rows = [_flat(run) for run in runs]
    writer = csv.DictWriter(table, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    for name, text in (("sweep.json", json.dumps(record, indent=2) + "\n"), ("sweep.csv", table.getvalue())):
        unfinished = folder / f"{name}.partial"
        unfinished.write_text(text)
        os.replace(unfinished, folder / name)


def _flat(run: Run) -> dict[str, Any]:
    """A row of the CSV file: settings, exit code, seconds, and the summary's numbers with their full names."""
    row: dict[str, Any] = {**run.settings, "exit_code": run.exit_code, "seconds": run.seconds, "run_dir": run.run_dir}
    for name, value in (run.summary or {}).items():
        if isinstance(value, dict):
            row |= {f"{name}/{key}": one for key, one in value.items() if not isinstance(one, dict | list)}
        elif not isinstance(value, list):
            row[name] = value
    return row


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
