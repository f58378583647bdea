"""Reasons not to trust a comparison: budgets, held-out sets, models, code and settings that differ between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.studies.analysis.run_groups import ComparedRun, RunGroup, differing, shown

SPENT_TOLERANCE = 0.05  # of the largest budget: runs end after whole steps
SECONDS_TOLERANCE = 0.1  # of the shortest run, by which the seconds of compilation may differ

_HELD_OUT = (
    *("data.task", "data.root", "data.eval", "data.eval_path", "data.verifier", "data.template"),
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
    every = sorted({name for run in runs for name in run.settings})
    origin = names.differ_in(runs, "model", [name for name in every if name.startswith("model.") and name not in meant])
    origin += _held_out(runs, names, every)
    lines += origin
    if not any(name.startswith("data.") for name in meant):
        lines += _data(runs, names)
    if not origin:
        lines += _starts(runs, names)
    lines += _code(runs, names)
    lines += _machine(runs, names)
    lines += _settings(groups, names, swept)
    lines += _seeds(groups)
    return lines


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

    def differ(
        self, runs: Sequence[ComparedRun], kind: Kind, subject: str, value: Callable[[ComparedRun], Any]
    ) -> list[Flag]:
        """A flag "SUBJECT: VALUE: RUNS; VALUE: RUNS" if the runs have several values, else none."""
        members: dict[str, list[ComparedRun]] = {}
        for run in runs:
            members.setdefault(str(value(run)), []).append(run)
        text = "; ".join(f"{key}: {self.all(having)}" for key, having in members.items())
        return [Flag(kind, f"{subject}: {text}")] if len(members) > 1 else []

    def differ_in(self, runs: Sequence[ComparedRun], kind: Kind, settings: Sequence[str]) -> list[Flag]:
        """A flag for each setting with several values."""

        def flags_of(name: str) -> list[Flag]:
            return self.differ(runs, kind, f"{name} differs", lambda run: shown(run.settings.get(name)))

        return [flag for name in settings for flag in flags_of(name)]


def _budget(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    lines = names.differ_in(runs, "budget", ("training.max_steps", "training.max_sampled_tokens"))
    finished = [run for run in runs if run.state == "finished" and "sampled_tokens" in run.curves.totals]
    spent = [run.curves.totals["sampled_tokens"] for run in finished]
    if spent and min(spent) < (1 - SPENT_TOLERANCE) * max(spent):
        subject = "the runs spent different numbers of sampled tokens"
        lines += names.differ(finished, "budget", subject, lambda run: f"{run.curves.totals['sampled_tokens']:,.0f}")
    return lines


def _held_out(runs: Sequence[ComparedRun], names: _Names, settings: Sequence[str]) -> list[Flag]:
    sections = ("evaluation.", *{f"data.{run.settings.get('data.task')}." for run in runs})
    keys = [name for name in settings if name.startswith(sections) or name in _HELD_OUT]
    keys = [name for name in keys if name != "evaluation.every"]
    lines = names.differ_in(runs, "held-out", keys)
    lines += names.differ(
        [run for run in runs if run.curves.evaluations],
        "held-out",
        "the held-out sets have different sizes",
        lambda run: f"{run.curves.final('eval/prompts') or 0:.0f} problems",
    )
    with_samples = [run for run in runs if run.run.steps("eval")]
    lines += names.differ(
        with_samples, "held-out", "the held-out problems differ", lambda run: f"set {held_out_fingerprint(run)}"
    )
    return lines


def held_out_fingerprint(run: ComparedRun) -> str:
    """A short hash of the held-out problems of a run: set, place, problem and prompt of the first stored evaluation."""
    digest = hashlib.sha256()
    for record in run.run.rollouts(run.run.steps("eval")[0], "eval"):
        if record.base == 0:
            digest.update(repr((record.benchmark, record.problem_id, list(record.prompt_ids))).encode())
    return digest.hexdigest()[:8]


def _data(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    """Lines about the content of files: settings may be equal, and the files behind them not."""
    recorded = {id(run): recorded_data(run.run.directory) for run in runs}
    lines = []
    for name in sorted({name for fingerprints in recorded.values() for name in fingerprints}):
        kind: Kind = "held-out" if name.startswith("held-out") else "model" if name == "tokenizer" else "data"
        having = [run for run in runs if name in recorded[id(run)]]
        values = {key: fingerprints.get(name) for key, fingerprints in recorded.items()}

        def fingerprint(run: ComparedRun, values: dict[int, str | None] = values) -> str | None:
            return values[id(run)]

        lines += names.differ(having, kind, f"{name} differs", fingerprint)
    return lines


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


def _starts(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    """Runs of one seed score the same before training, because their noise and their weights are the same."""
    lines = []
    for seed in sorted({run.seed for run in runs}):
        lines += names.differ(
            [run for run in runs if run.seed == seed and (c := run.curves.curve("greedy")) and c.steps[0] == 0],
            "held-out",
            f"seed {seed}: the scores before training differ, so the start weights, the held-out set, the code or the "
            "machine do",
            lambda run: f"greedy {run.curves.evaluations['greedy'].values[0]:.4g}",
        )
    return lines


def _code(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    described = [run for run in runs if run.run.provenance]
    lines = []
    if len(described) < len(runs):
        others = names.all([run for run in runs if not run.run.provenance])
        lines.append(Flag("code", f"without provenance.json, code, versions and device are unknown: {others}"))
    lines += names.differ(
        described, "code", "the runs used different code", lambda run: " and ".join(_commits(run.run.provenance))
    )
    dirty = [run for run in described if any(state.get("dirty") for state in _code_states(run.run.provenance))]
    if dirty:
        lines.append(Flag("code", f"the code had changes that no commit holds: {names.all(dirty)}"))
    versions = {id(run): run.run.provenance.get("versions") or {} for run in described}
    for package in sorted({name for each in versions.values() for name in each}):

        def version(run: ComparedRun, package: str = package) -> str | None:
            return versions[id(run)].get(package)

        lines += names.differ(described, "code", f"the version of {package} differs", version)
    return lines


def _code_states(provenance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The commit and its changes at each start of a run, as far as they are known; a run may have been resumed."""
    return [start.get("git") or {} for start in (*provenance.get("earlier", []), provenance)]


def _commits(provenance: Mapping[str, Any]) -> list[str]:
    commits = [str(state.get("commit") or "unknown")[:10] for state in _code_states(provenance)]
    return list(dict.fromkeys(commits))


def _machine(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    lines = names.differ(
        [run for run in runs if run.run.provenance],
        "machine",
        "the devices differ, so seconds do not compare",
        lambda run: run.run.provenance.get("device_kind", "unknown"),
    )
    timed = [run for run in runs if {"compile_seconds", "wall_seconds"} <= set(run.curves.totals)]
    compiled = [run.curves.totals["compile_seconds"] for run in timed]
    shortest = min((run.curves.totals["wall_seconds"] for run in timed), default=0.0)
    if timed and max(compiled) - min(compiled) > SECONDS_TOLERANCE * shortest:
        lines += names.differ(
            timed,
            "machine",
            "the seconds hold compilation, some of it fetched from a cache",
            lambda run: f"{run.curves.totals['compile_seconds']:.0f} s",
        )
    return lines


def _settings(groups: Sequence[RunGroup], names: _Names, swept: Sequence[str] | None) -> list[Flag]:
    runs = [run for group in groups for run in group.runs]
    lines = []
    for group in groups:  # only --by puts different settings into one group
        for key in differing(group.runs):

            def value(run: ComparedRun, key: str = key) -> str:
                return shown(run.settings.get(key))

            text = f"{group.label} mixes values of {key}"
            lines += _Names([group]).differ(group.runs, "settings", text, value)
    if swept is not None and (more := [name for name in differing(runs) if name not in swept]):
        meant = ", ".join(swept) or "the seed"
        lines.append(Flag("settings", f"the runs differ in more than {meant}: {', '.join(more)}"))
    for run in runs:
        if former := sorted(run.run.directory.path.glob("config.step_*.yaml")):
            steps = ", ".join(str(int(path.name.removeprefix("config.step_").removesuffix(".yaml"))) for path in former)
            lines.append(Flag("settings", f"{names.of(run)} changed its settings after step {steps}"))
    return lines


def _seeds(groups: Sequence[RunGroup]) -> list[Flag]:
    lines = []
    if len({tuple(group.seeds) for group in groups}) > 1:
        each = "; ".join(f"{group.label}: {', '.join(map(str, group.seeds))}" for group in groups)
        lines.append(Flag("seeds", f"the groups have different seeds, and pairs need the same: {each}"))
    for group in groups:
        if len(group.seeds) < len(group.runs):
            twice = [seed for seed in group.seeds if sum(run.seed == seed for run in group.runs) > 1]
            text = ", ".join(map(str, twice))
            lines.append(Flag("seeds", f"{group.label} has several runs of seed {text}; each counts as a replicate"))
    if all(len(group.runs) == 1 for group in groups):
        text = "each group has one run: the noise between seeds is unknown, so there are no bands and no intervals"
        lines.append(Flag("seeds", text))
    return lines
