"""``sweep.json``: the results of a sweep, from which the same command goes on."""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.run_directory import write_json_atomic
from fr3e_jax.stored_json import DamagedRecord, read_record
from fr3e_jax.studies.analysis.run_groups import SWEEP_FILE
from fr3e_jax.verbs.sweep_runs import RECIPE, Run, safe_name


class SweepRecord(TypedDict):
    """The content of ``sweep.json``; a running sweep names its process."""

    recipe: str
    verb: str
    process: NotRequired[int]
    host: NotRequired[str]
    runs: list[Run]


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
        recorded = [{key: value for key, value in run.settings.items() if key != RECIPE} for run in record["runs"]]
        if recorded != expected or [run.command[4:5] for run in record["runs"]] != [[axis] for axis in recipes]:
            continue
        if all(run.is_finished for run in record["runs"]):
            return None
        if _alive(record.get("process"), record.get("host")):
            raise ConfigError(
                f"{folder} is running in process {record['process']}; wait for it, or begin another sweep with --new"
            )
        return folder
    return None


def take_over(folder: Path, runs: list[Run]) -> None:
    """Take what the runs of an earlier process have done; those that did not succeed go on where they were."""
    record = _read(folder)
    for run, former in zip(runs, record["runs"] if record else [], strict=True):
        if former.is_finished:
            run.exit_code, run.seconds, run.summary = 0, former.seconds, former.summary
        run.command.append("--continue")


def _read(folder: Path) -> SweepRecord | None:
    with contextlib.suppress(OSError, DamagedRecord):
        return read_record(SweepRecord, (folder / SWEEP_FILE).read_bytes(), SWEEP_FILE)
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
    """Write ``sweep.json``, whole or not at all; a ``running`` sweep names its process."""
    owner = {"process": os.getpid(), "host": platform.node()} if running else {}
    record = {"recipe": recipe, "verb": verb, **owner, "runs": [asdict(run) for run in runs]}
    write_json_atomic(folder / SWEEP_FILE, record)
