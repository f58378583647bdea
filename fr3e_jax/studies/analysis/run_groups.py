"""Runs gathered from directories and sweeps, and grouped: equal settings but for the seed make one group."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from fr3e_jax.configuration import Config, ConfigError
from fr3e_jax.configuration.settings import flat_settings
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.runs.run_state import run_state
from fr3e_jax.stored_json import DamagedRecord, Number, read_record
from fr3e_jax.stores.objects import is_remote
from fr3e_jax.stores.reading import overview_folder
from fr3e_jax.studies.analysis.run_curves import RunCurves, run_curves
from fr3e_jax.studies.analysis.stored_run import StoredRun

SWEEP_FILE = "sweep.json"
LONGEST_LABEL = 44  # characters of a label made of settings
_BOOKKEEPING = {"name", "seed", "evaluation.every"}


class _SweptRun(TypedDict):
    run_dir: str
    exit_code: int | None
    settings: dict[str, str | bool | Number | None]


class _SweptRuns(TypedDict):
    runs: list[_SweptRun]


@dataclass(frozen=True)
class ComparedRun:
    """A run of a comparison."""

    run: StoredRun
    settings: Mapping[str, Any]
    """By dotted names; those that an older version did not write have today's defaults."""
    curves: RunCurves
    exit_code: int | None = None
    """Of a run of a sweep that has ended."""

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @cached_property
    def state(self) -> str:
        """``finished``, or how far the run is and why it is not further."""
        ending = run_state(self.run.directory)
        if ending.state == "finished":
            return ending.state
        code = f", exit code {self.exit_code}" if self.exit_code else ""
        reason = f" ({ending.reason})" if ending.reason else ""
        return f"{ending.state}{code} at step {self.curves.last_step}{self._of_budget()}{reason}"

    def _of_budget(self) -> str:
        steps = self.settings.get("training.max_steps")
        tokens = self.settings.get("training.max_sampled_tokens")
        if tokens:
            spent = self.curves.totals.get("sampled_tokens", 0)
            return f", {spent:,.0f} of {tokens:,} sampled tokens"
        return f" of {steps:,}" if steps else ""


@dataclass(frozen=True)
class RunGroup:
    """Runs that replicate one setting."""

    label: str
    runs: Sequence[ComparedRun]
    """By seed."""

    @property
    def seeds(self) -> list[int]:
        """The seeds, each once."""
        return sorted({run.seed for run in self.runs})


@dataclass(frozen=True)
class Collection:
    """The runs that were named, and the lines about those that cannot be compared."""

    runs: Sequence[ComparedRun]
    left_out: Sequence[str] = ()
    swept: Sequence[str] | None = None
    """Settings that the sweeps varied; None if a run belongs to no sweep."""


def method_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make a group: all but seed, name, bookkeeping and machine.

    Left out are ``runtime``, ``checkpoint`` and ``evaluation.every``, which change nothing that is learned or measured.
    """
    return {
        name: value
        for name, value in settings.items()
        if name not in _BOOKKEEPING and not name.startswith(("runtime.", "checkpoint."))
    }


def collect(paths: Sequence[str | Path]) -> Collection:
    """The runs in directories of runs, of sweeps (``sweep.json``) and in folders whose sub-folders are runs.

    A run that is named twice counts once. A run that cannot be read is left out with a line that says why.

    Raises:
      ConfigError: fewer than two runs can be read.
    """
    runs: dict[Path, ComparedRun] = {}
    left_out: list[str] = []
    listed: list[str] = []
    swept: list[list[str] | None] = []
    for path in paths:
        # Of an address in a store, the copy of the runs there.
        folder = overview_folder(str(path)) if is_remote(path) else Path(path).expanduser()
        try:
            directories, varied = _runs_below(folder)
        except ConfigError as error:
            left_out.append(str(error))
            continue
        swept.append(varied)
        if varied is not None:
            listed.append(f"{folder / SWEEP_FILE} names {len(directories)}")
        for directory, exit_code in directories:
            try:
                runs.setdefault(directory.resolve(), read_run(directory, exit_code))
            except ConfigError as error:
                left_out.append(f"{directory.name}: {error}")
    if len(runs) < 2:
        readable = f"only one run, {next(iter(runs.values())).run.directory.path}" if runs else "no run"
        reasons = f" ({'; '.join(left_out + listed)})" if left_out or listed else ""
        raise ConfigError(f"found {readable}{reasons}; expected at least two: fr3e compare RUN RUN ... or SWEEP_DIR")
    names = None if None in swept else dict.fromkeys(name for varied in swept for name in varied or ())
    return Collection(list(runs.values()), left_out, names if names is None else list(names))


def read_run(directory: Path, exit_code: int | None = None) -> ComparedRun:
    """A run with its curves.

    Raises:
      ConfigError: there is no run, its settings or metrics cannot be read, or it has no metrics yet.
    """
    if not RunDirectory(directory).holds_run():
        ended = f"; it ended with exit code {exit_code}, see its log.txt" if exit_code else ""
        raise ConfigError(f"{directory} holds no run{ended}; expected the directory of a run (config.yaml, ...)")
    run = StoredRun.open(directory)
    settings = default_settings() | dict(run.settings)
    if not run.records:
        raise ConfigError(f"{run.directory.metrics} is missing or empty; expected the metrics of at least one step")
    epochs = 1 if run.provenance.get("verb") == "rft" else int(settings["training.epochs"])
    curves = run_curves(run.records, epochs=epochs)
    return ComparedRun(run, settings, curves, exit_code)


def default_settings() -> dict[str, Any]:
    """The settings of this version by their dotted names."""
    return dict(flat_settings(dataclasses.asdict(Config())))


def _runs_below(path: Path) -> tuple[list[tuple[Path, int | None]], list[str] | None]:
    """(directory, exit code) of each run, and the swept settings of a sweep."""
    if RunDirectory(path).holds_run():
        return [(path, None)], None
    if (path / SWEEP_FILE).is_file():
        return _runs_of_sweep(path)
    folders = sorted(below for below in path.iterdir() if below.is_dir()) if path.is_dir() else []
    runs: list[tuple[Path, int | None]] = [(folder, None) for folder in folders if RunDirectory(folder).holds_run()]
    if not runs:
        seen = "a directory without runs" if path.is_dir() else "no such directory"
        raise ConfigError(f"{path}: found {seen}; expected a run, a sweep ({SWEEP_FILE}) or a folder of runs")
    return runs, None


def _runs_of_sweep(folder: Path) -> tuple[list[tuple[Path, int | None]], list[str]]:
    path = folder / SWEEP_FILE
    try:
        runs = read_record(_SweptRuns, path.read_bytes(), str(path))["runs"]
    except (OSError, DamagedRecord) as error:
        raise ConfigError(f"{path} cannot be read ({error}); expected the file that fr3e sweep wrote") from error
    if not runs:
        raise ConfigError(f"{path} lists no run; expected the file that fr3e sweep wrote")
    # The folder may have moved since: the runs lie beside sweep.json.
    directories = [(folder / Path(run["run_dir"]).name, run["exit_code"]) for run in runs]
    varied = _varied(run["settings"] for run in runs)
    return directories, [name for name in varied if name != "seed"]


def differing(runs: Iterable[ComparedRun]) -> list[str]:
    """Names of the method's settings that are not equal in all runs."""
    return sorted(_varied(method_settings(run.settings) for run in runs))


def _varied(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names with several values, or that some of the settings lack."""
    every = list(settings)
    names = dict.fromkeys(name for values in every for name in values)
    return [name for name in names if len({shown(values.get(name)) for values in every}) > 1]


def shown(value: Any) -> str:
    """The value of a setting as text, as one would write it in a command."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def group_runs(
    runs: Sequence[ComparedRun], *, by: Sequence[str] = (), labels: Sequence[str] = ()
) -> tuple[list[RunGroup], list[str]]:
    """Groups in the order of their first runs, and the names of the settings in which the groups differ.

    Args:
      runs: the runs to group.
      by: settings that alone make the groups; empty: all of `method_settings`.
      labels: names of the groups, in their order; empty: the recipes' names, or the settings in which they differ.

    Raises:
      ConfigError: no run has a setting of ``by``, or there are other numbers of labels and groups.
    """
    unknown = [name for name in by if not any(name in run.settings for run in runs)]
    if unknown:
        raise ConfigError(f"--by: no run has the setting {unknown[0]!r}; expected names such as explore.num_anchors")
    names = list(by) or differing(runs)
    members: dict[tuple[str, ...], list[ComparedRun]] = {}
    for run in runs:
        members.setdefault(tuple(shown(run.settings.get(name)) for name in names), []).append(run)
    groups = list(members.values())
    if labels and (len(labels) != len(groups) or len(set(labels)) < len(labels)):
        raise ConfigError(
            f"--label: found {len(labels)} labels ({', '.join(labels)}), expected {len(groups)} different ones, one "
            f"for each group in this order: {', '.join(_labels(groups, names, by=bool(by)))}"
        )
    named = zip(labels or _labels(groups, names, by=bool(by)), groups, strict=True)
    return [RunGroup(label, sorted(group, key=lambda run: (run.seed, run.name))) for label, group in named], names


def _labels(groups: Sequence[Sequence[ComparedRun]], names: Sequence[str], *, by: bool) -> list[str]:
    """Labels, all different: the recipes' names if each group has one of its own, else settings if they are short.

    Long settings are in the table of settings; groups of one recipe then have numbers. The section of a setting is left
    out where the last part of its name is one of its kind. ``by``: the user named the settings.
    """
    recipes = [" ".join(sorted({str(run.settings.get("name")) for run in group})) for group in groups]
    single = all(len({str(run.settings.get("name")) for run in group}) == 1 for group in groups)
    if len(groups) == 1 or (not by and single and len(set(recipes)) == len(groups)):
        return recipes
    ends = [name.rpartition(".")[2] for name in names]
    short = [end if ends.count(end) == 1 else name for name, end in zip(names, ends, strict=True)]
    rows = [[shown(group[0].settings.get(name)) for name in names] for group in groups]
    labels = [" ".join(f"{name}={value}" for name, value in zip(short, row, strict=True)) for row in rows]
    if by:
        return labels
    if max(map(len, labels)) > LONGEST_LABEL:
        counts = [recipes[: n + 1].count(recipe) for n, recipe in enumerate(recipes)]
        labels = [str(n) if recipes.count(recipe) > 1 else "" for recipe, n in zip(recipes, counts, strict=True)]
    elif not single or len(set(recipes)) == 1:
        return labels
    return [f"{recipe} {label}".rstrip() for recipe, label in zip(recipes, labels, strict=True)]
