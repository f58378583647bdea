"""Reasons not to trust a comparison: budgets, held-out sets, models, code and settings that differ between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from fr3e_jax.configuration.provenance import NO_GIT
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.studies.analysis.run_groups import ComparedRun, RunGroup, differing, shown

SPENT_TOLERANCE = 0.05  # of the largest budget: runs end after whole steps
SECONDS_TOLERANCE = 0.1  # of the shortest run, by which the seconds of compilation may differ

_HELD_OUT = (
    *("data.task", "data.environment", "data.environment_options", "data.root"),
    *("data.eval", "data.verifier", "data.template"),
    *("data.system", "data.template_options"),
    *("judge.model", "judge.prompt", "judge.weight", "judge.right_from"),
    *("data.max_prompt_tokens", "data.seed", "rollout.max_response_tokens"),
)

Kind = Literal["left out", "state", "budget", "held-out", "model", "data", "code", "machine", "settings", "seeds"]


@dataclass(frozen=True)
class Flag:
    """One line for readers of a comparison."""

    kind: Kind
    text: str


def flags(groups: Sequence[RunGroup], *, swept: Sequence[str] | None, left_out: Iterable[str] = ()) -> list[Flag]:
    """All lines, the gravest first. ``swept``: settings that were meant to differ; None if that is not known."""
    runs = [run for group in groups for run in group.runs]
    names = _Names(groups)
    meant = swept or ()
    lines = [Flag("left out", line) for line in left_out]
    lines += [Flag("state", f"{names.of(run)} is {run.state}") for run in runs if run.state != "finished"]
    lines += [
        Flag("state", f"{names.of(run)} has no evaluation: it counts in the training metrics only")
        for run in runs
        if not run.curves.evaluations
    ]
    lines += _budget(runs, names)
    settings = sorted({name for run in runs for name in run.settings})
    model = [name for name in settings if name.startswith("model.") and name not in meant]
    origin = [*names.differ_in(runs, "model", model), *_held_out(runs, names, settings)]
    lines += origin
    if not any(name.startswith("data.") for name in meant):
        lines += _data(runs, names)
    if not origin:
        lines += _starts(runs, names)
    return [*lines, *_code(runs, names), *_machine(runs, names), *_settings(groups, names, swept), *_seeds(groups)]


class _Names:
    """Names of runs in flags: the label and the seed, or the label alone for a whole group."""

    def __init__(self, groups: Sequence[RunGroup]) -> None:
        self._groups = groups

    def of(self, run: ComparedRun) -> str:
        label = next(group.label for group in self._groups if any(each is run for each in group.runs))
        return f"{label} (seed {run.seed}, {run.name})"

    def all(self, runs: Sequence[ComparedRun]) -> str:
        names = []
        for group in self._groups:
            members = [run for run in group.runs if any(each is run for each in runs)]
            if len(members) == len(group.runs):
                names.append(group.label)
            elif members:
                names.append(f"{group.label} (seed {', '.join(str(run.seed) for run in members)})")
        return ", ".join(names)

    def differ(self, kind: Kind, subject: str, values: Iterable[tuple[ComparedRun, Any]]) -> Iterator[Flag]:
        """A flag "SUBJECT: VALUE: RUNS; VALUE: RUNS" if the runs have several values, else none."""
        members: dict[str, list[ComparedRun]] = {}
        for run, value in values:
            members.setdefault(str(value), []).append(run)
        if len(members) > 1:
            values_and_runs = "; ".join(f"{value or '(empty)'}: {self.all(of)}" for value, of in members.items())
            yield Flag(kind, f"{subject}: {values_and_runs}")

    def differ_in(self, runs: Sequence[ComparedRun], kind: Kind, settings: Sequence[str]) -> Iterator[Flag]:
        """A flag for each setting with several values."""
        for name in settings:
            yield from self.differ(kind, f"{name} differs", [(run, shown(run.settings.get(name))) for run in runs])


def _budget(runs: Sequence[ComparedRun], names: _Names) -> Iterator[Flag]:
    yield from names.differ_in(runs, "budget", ("training.max_steps", "training.max_sampled_tokens"))
    totals = [(run, run.curves.totals.get("sampled_tokens")) for run in runs if run.state == "finished"]
    spent = [(run, total) for run, total in totals if total is not None]
    amounts = [total for _, total in spent]
    if spent and min(amounts) < (1 - SPENT_TOLERANCE) * max(amounts):
        subject = "the runs spent different numbers of sampled tokens"
        yield from names.differ("budget", subject, [(run, f"{total:,.0f}") for run, total in spent])


def _held_out(runs: Sequence[ComparedRun], names: _Names, settings: Sequence[str]) -> Iterator[Flag]:
    sections = ("evaluation.", *{f"data.{run.settings.get('data.task')}." for run in runs})
    keys = [name for name in settings if name.startswith(sections) or name in _HELD_OUT]
    yield from names.differ_in(runs, "held-out", [name for name in keys if name != "evaluation.every"])
    sizes = [(run, run.curves.final("eval/prompts") or 0) for run in runs if run.curves.evaluations]
    subject = "the held-out sets have different sizes"
    yield from names.differ("held-out", subject, [(run, f"{size:.0f} problems") for run, size in sizes])
    hashes = [(run, f"set {held_out_fingerprint(run)}") for run in runs if run.run.steps("eval")]
    yield from names.differ("held-out", "the held-out problems differ", hashes)


def held_out_fingerprint(run: ComparedRun) -> str:
    """A short hash of the held-out problems of a run: set, place, problem and prompt of the first stored evaluation."""
    digest = hashlib.sha256()
    for record in run.run.rollouts(run.run.steps("eval")[0], "eval"):
        if record.base == 0:
            digest.update(repr((record.benchmark, record.problem_id, list(record.prompt_ids))).encode())
    return digest.hexdigest()[:8]


def _data(runs: Sequence[ComparedRun], names: _Names) -> Iterator[Flag]:
    """Lines about the content of files: settings may be equal, and the files behind them not."""
    recorded = [(run, recorded_data(run.run.directory)) for run in runs]
    for name in sorted({name for _, fingerprints in recorded for name in fingerprints}):
        kind: Kind = "held-out" if name.startswith("held-out") else "model" if name == "tokenizer" else "data"
        yield from names.differ(
            kind, f"{name} differs", [(run, prints[name]) for run, prints in recorded if name in prints]
        )


def recorded_data(run_dir: RunDirectory) -> dict[str, str]:
    """Fingerprints of a run's data, tokenizer and user's files, as its newest checkpoint records them.

    Names are such as "training data" or "held-out data aime24"; empty without a checkpoint to read. The host state of a
    checkpoint is JSON (`runs/checkpoints.py`); its arrays are not touched.
    """
    steps = run_dir.checkpoints.iterdir() if run_dir.checkpoints.is_dir() else ()
    for step in sorted((path for path in steps if path.name.isdecimal()), key=lambda path: -int(path.name)):
        try:
            return dict(_fingerprints(orjson.loads((step / "host" / "metadata").read_bytes())["host"]["identity"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # under way, damaged, or of an older version
            continue
    return {}


def _fingerprints(identity: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("training_data", "demonstrations", "tokenizer"):
        if key in identity:
            yield key.replace("_", " "), str(identity[key])
    for key, label in (("held_out_data", "held-out data"), ("files", "file of")):
        for name, fingerprint in identity.get(key, {}).items():
            yield f"{label} {name}".strip(), str(fingerprint)


def _starts(runs: Sequence[ComparedRun], names: _Names) -> Iterator[Flag]:
    """Runs of one seed score the same before training, because their noise and their weights are the same."""
    curves = [(run, curve) for run in runs if (curve := run.curves.curve("greedy")) and curve.steps[0] == 0]
    for seed in sorted({run.seed for run in runs}):
        subject = (
            f"seed {seed}: the scores before training differ, so the start weights, the held-out set, the code or "
        )
        scores = [(run, f"greedy {curve.values[0]:.4g}") for run, curve in curves if run.seed == seed]
        yield from names.differ("held-out", f"{subject}the machine do", scores)


def _code(runs: Sequence[ComparedRun], names: _Names) -> Iterator[Flag]:
    if others := [run for run in runs if not run.run.provenance]:
        yield Flag("code", f"without provenance.json, code, versions and device are unknown: {names.all(others)}")
    # The commit and its changes at each start of a run, as far as they are known; a run may have been resumed.
    starts = [
        (run, [start.get("git") or NO_GIT for start in (*origin.get("earlier", []), origin)])
        for run in runs
        if (origin := run.run.provenance)
    ]
    commits = [
        (run, " and ".join(dict.fromkeys(str(state.get("commit") or "unknown")[:10] for state in states)))
        for run, states in starts
    ]
    yield from names.differ("code", "the runs used different code", commits)
    if dirty := [run for run, states in starts if any(state.get("dirty") for state in states)]:
        yield Flag("code", f"the code had changes that no commit holds: {names.all(dirty)}")
    versions = [(run, run.run.provenance.get("versions") or {}) for run, _ in starts]
    for package in sorted({name for _, installed in versions for name in installed}):
        subject = f"the version of {package} differs"
        yield from names.differ("code", subject, [(run, installed.get(package)) for run, installed in versions])


def _machine(runs: Sequence[ComparedRun], names: _Names) -> Iterator[Flag]:
    devices = [(run, origin.get("device_kind", "unknown")) for run in runs if (origin := run.run.provenance)]
    yield from names.differ("machine", "the devices differ, so seconds do not compare", devices)
    timed = [run for run in runs if {"compile_seconds", "wall_seconds"} <= set(run.curves.totals)]
    compiled = [run.curves.totals["compile_seconds"] for run in timed]
    shortest = min((run.curves.totals["wall_seconds"] for run in timed), default=0.0)
    if timed and max(compiled) - min(compiled) > SECONDS_TOLERANCE * shortest:
        subject = "the seconds hold compilation, some of it fetched from a cache"
        seconds = [(run, f"{value:.0f} s") for run, value in zip(timed, compiled, strict=True)]
        yield from names.differ("machine", subject, seconds)


def _settings(groups: Sequence[RunGroup], names: _Names, swept: Sequence[str] | None) -> Iterator[Flag]:
    runs = [run for group in groups for run in group.runs]
    for group in groups:  # only --by puts different settings into one group
        for key in differing(group.runs):
            values = [(run, shown(run.settings.get(key))) for run in group.runs]
            yield from _Names([group]).differ("settings", f"{group.label} mixes values of {key}", values)
    if swept is not None and (more := [name for name in differing(runs) if name not in swept]):
        meant = ", ".join(swept) or "the seed"
        yield Flag("settings", f"the runs differ in more than {meant}: {', '.join(more)}")
    for run in runs:
        if former := sorted(run.run.directory.path.glob("config.step_*.yaml")):
            steps = ", ".join(str(int(path.name.removeprefix("config.step_").removesuffix(".yaml"))) for path in former)
            yield Flag("settings", f"{names.of(run)} changed its settings after step {steps}")


def _seeds(groups: Sequence[RunGroup]) -> Iterator[Flag]:
    if len({tuple(group.seeds) for group in groups}) > 1:
        each = "; ".join(f"{group.label}: {', '.join(map(str, group.seeds))}" for group in groups)
        yield Flag("seeds", f"the groups have different seeds, and pairs need the same: {each}")
    for group in groups:
        if len(group.seeds) < len(group.runs):
            twice = [seed for seed in group.seeds if sum(run.seed == seed for run in group.runs) > 1]
            text = ", ".join(map(str, twice))
            yield Flag("seeds", f"{group.label} has several runs of seed {text}; each counts as a replicate")
    if all(len(group.runs) == 1 for group in groups):
        text = "each group has one run: the noise between seeds is unknown, so there are no bands and no intervals"
        yield Flag("seeds", text)
