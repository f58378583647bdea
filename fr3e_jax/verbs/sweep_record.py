"""``sweep.json`` and ``sweep.csv``: the results of a sweep, from which the same command goes on."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.run_directory import atomic_file
from fr3e_jax.verbs.sweep_runs import RECIPE, Run, safe_name


def unfinished_sweep(output_dir: str, name: str, recipe: str, verb: str, combinations: list[dict]) -> Path | None:
    """The newest sweep with this recipe, verb and combinations, if it has not succeeded whole.

    Raises:
      ConfigError: a process is running it.
    """
    expected = [{key: value for key, value in settings.items() if key != RECIPE} for settings in combinations]
    recipes = [settings[RECIPE] for settings in combinations]
    for folder in sorted(Path(output_dir).expanduser().absolute().glob(f"sweep-{safe_name(name)}-*"), reverse=True):
        record = _read(folder)
        if record is None or (record["recipe"], record["verb"]) != (recipe, verb):
            continue
        recorded = [{key: value for key, value in run["settings"].items() if key != RECIPE} for run in record["runs"]]
        if recorded != expected or [run["command"][4] for run in record["runs"]] != recipes:
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


def write_record(folder: Path, recipe: str, verb: str, runs: list[Run], *, running: bool) -> None:
    """Write ``sweep.json`` and ``sweep.csv``, each whole or not at all; a ``running`` sweep names its process."""
    owner = {"process": os.getpid(), "host": platform.node()} if running else {}
    record = {"recipe": recipe, "verb": verb, **owner, "runs": [asdict(run) for run in runs]}
    table = io.StringIO()
    rows = [_flat(run) for run in runs]
    writer = csv.DictWriter(table, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    for name, text in (("sweep.json", json.dumps(record, indent=2) + "\n"), ("sweep.csv", table.getvalue())):
        with atomic_file(folder / name) as stream:
            stream.write(text.encode())


def _flat(run: Run) -> dict[str, Any]:
    """A row of the CSV file: settings, exit code, seconds, and the summary's numbers with their full names."""
    row: dict[str, Any] = {**run.settings, "exit_code": run.exit_code, "seconds": run.seconds, "run_dir": run.run_dir}
    for name, value in (run.summary or {}).items():
        if isinstance(value, dict):
            row |= {f"{name}/{key}": figure for key, figure in value.items() if not isinstance(figure, dict | list)}
        elif not isinstance(value, list):
            row[name] = value
    return row
