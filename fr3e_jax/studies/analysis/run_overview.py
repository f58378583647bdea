"""The runs below a folder, each in a line: recipe, state, progress, budget, held-out score before and after."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.provenance import CONFIG_FILE, PROVENANCE_FILE
from fr3e_jax.runs.run_directory import STATUS, RunDirectory, check_format
from fr3e_jax.runs.run_state import run_state
from fr3e_jax.stored_json import DamagedRecord, read_record
from fr3e_jax.studies.analysis.run_curves import is_finite
from fr3e_jax.studies.analysis.run_groups import SWEEP_FILE
from fr3e_jax.studies.analysis.stored_run import StoredRun

DEPTH = 4  # folders below the one that is listed
LENGTHS = {"train": "training.max_steps", "": "training.max_steps", "sft": "sft.steps"}
"""Verb of a run → the setting of its number of steps."""
_SCORES = ("avg", "avg@", "pass@", "greedy")


class _PlannedRuns(TypedDict):
    recipe: str
    runs: list[dict]


@dataclass(frozen=True)
class RunOverview:
    """One run. A number that the run has not written is None."""

    path: str
    recipe: str
    verb: str
    state: str
    """See `fr3e_jax.runs.run_state.State`; ``damaged`` if a file of the run cannot be read."""
    reason: str
    step: int
    max_steps: int | None
    sampled_tokens: int
    max_sampled_tokens: int | None
    score: str
    """Name of the held-out score."""
    before: float | None
    after: float | None
    """The score of the newest evaluation; None if only the start was evaluated."""
    changed: float
    """Time of the last change of its files, in seconds since 1970."""

    @property
    def runs(self) -> tuple[RunOverview, ...]:
        """The run itself, as a sweep has its runs."""
        return (self,)


@dataclass(frozen=True)
class SweepOverview:
    """One sweep and its runs."""

    path: str
    recipe: str
    planned: int
    runs: tuple[RunOverview, ...]

    @property
    def changed(self) -> float:
        """Time of the last change of its runs."""
        return max((run.changed for run in self.runs), default=0.0)

    def states(self) -> str:
        """Its runs by state, as in "3 finished, 1 failed, 2 not begun"."""
        counts = Counter(run.state for run in self.runs)
        counts["not begun"] = max(0, self.planned - len(self.runs))
        return ", ".join(f"{count} {state}" for state, count in counts.most_common() if count) or "no runs"


Listed = RunOverview | SweepOverview


def overview(folder: Path) -> list[Listed]:
    """The runs and sweeps in and below a folder, the one that changed last first.

    Symbolic links are not followed. A run whose files are damaged is listed with the reason.
    """
    return sorted(_listed(Path(folder), DEPTH), key=lambda row: row.changed, reverse=True)


def _listed(folder: Path, depth: int) -> Iterator[Listed]:
    names, folders = _entries(folder)
    if SWEEP_FILE in names:
        yield _sweep(folder, folders)
    elif CONFIG_FILE in names and names & {PROVENANCE_FILE, "metrics.jsonl", STATUS}:
        yield run_overview(folder)
    elif depth:
        for below in folders:
            yield from _listed(below, depth - 1)


def _entries(folder: Path) -> tuple[set[str], list[Path]]:
    """Names of the files of a folder, and its folders; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError:
        return set(), []
    folders = sorted(Path(entry.path) for entry in listed if entry.is_dir(follow_symlinks=False))
    return {entry.name for entry in listed if entry.is_file()}, folders


def _sweep(folder: Path, folders: Sequence[Path]) -> SweepOverview:
    runs = tuple(run_overview(below) for below in folders if (below / CONFIG_FILE).is_file())
    try:
        sweep = read_record(_PlannedRuns, (folder / SWEEP_FILE).read_bytes(), SWEEP_FILE)
        recipe, planned = sweep["recipe"], len(sweep["runs"])
    except (OSError, DamagedRecord) as error:
        recipe, planned = f"{SWEEP_FILE} is damaged ({error})", len(runs)
    return SweepOverview(str(folder), recipe, planned, runs)


def run_overview(path: Path) -> RunOverview:
    """The overview of one run directory."""
    run = StoredRun(RunDirectory(path))
    ending = run_state(run.directory)
    state: str = ending.state
    reasons = [ending.reason] if ending.reason else []
    settings: Mapping[str, Any] = {}
    training: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    try:
        check_format(path, checkpoints=False)
        settings, training, evaluations = run.settings, run.training, run.evaluations
        steps, tokens = [record["step"] for record in training], _total(training, "tokens/sampled_tokens")
    except ConfigError as error:
        state, reasons, steps, tokens = "damaged", [" ".join(str(error).split()), *reasons], [], 0
    verb = str(run.provenance.get("verb", ""))
    score, before, after = _scores(evaluations)
    return RunOverview(
        path=str(path),
        recipe=str(settings.get("name", "")),
        verb=verb,
        state=state,
        reason="; ".join(reasons),
        step=max(steps, default=0),
        max_steps=settings.get(LENGTHS.get(verb, "")) or None,
        sampled_tokens=tokens,
        max_sampled_tokens=(settings.get("training.max_sampled_tokens") or None) if verb in ("train", "") else None,
        score=score,
        before=before,
        after=after,
        changed=_changed(path),
    )


def _total(records: Sequence[Mapping[str, Any]], name: str) -> int:
    return int(sum(record.get(name) or 0 for record in records))


def _scores(evaluations: Sequence[Mapping[str, Any]]) -> tuple[str, float | None, float | None]:
    """The name of the held-out score, its first value, and its last if there is a later one."""
    if not evaluations:
        return "", None, None
    first, last = evaluations[0], evaluations[-1]
    name = score_name(last)
    before, after = (float(record[name]) if is_finite(record.get(name)) else None for record in (first, last))
    return name, before if first["step"] == 0 else None, after if last["step"] else None


def score_name(metrics: Iterable[str]) -> str:
    """The name of the held-out score in an evaluation's metrics; empty if there is none."""
    metrics = list(metrics)
    names = (
        name for kind in _SCORES for name in metrics if name == kind or (kind[-1] == "@" and name.startswith(kind))
    )
    return next(names, "")


def _changed(path: Path) -> float:
    times = []
    for name in (CONFIG_FILE, "metrics.jsonl", STATUS, "summary.json"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def as_json(listed: Sequence[Listed]) -> list[dict[str, Any]]:
    """The list as JSON content; a sweep holds its runs."""
    return [asdict(row) | ({"states": row.states()} if isinstance(row, SweepOverview) else {}) for row in listed]


def age(changed: float, now: float | None = None) -> str:
    """The time since a change in its largest unit: 40 s, 5 min, 3 h, 12 d."""
    seconds = max(0.0, (time.time() if now is None else now) - changed)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
