"""Reasons not to trust a comparison: budgets, held-out sets, models, code and settings that differ between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fr3e_jax.studies.analysis.recorded_data import recorded_data
from fr3e_jax.studies.analysis.run_groups import ComparedRun, Group, differing, shown

SPENT_TOLERANCE = 0.05  # of the largest budget: runs end after whole steps
SECONDS_TOLERANCE = 0.1  # of the shortest run, by which the seconds of compilation may differ

_HELD_OUT = (
    *("data.task", "data.root", "data.eval", "data.eval_path", "data.verifier", "data.template"),
    *("data.max_prompt_tokens", "data.seed", "rollout.max_response_tokens"),
)
_BUDGET = ("training.max_steps", "training.max_sampled_tokens")

Kind = Literal["left out", "state", "budget", "held-out", "model", "data", "code", "machine", "settings", "seeds"]


@dataclass(frozen=True)
class Flag:
    """One line for readers of a comparison."""

    kind: Kind
    text: str


def flags(groups: Sequence[Group], *, swept: Sequence[str] | None, left_out: Iterable[str] = ()) -> list[Flag]:
    """All lines, the gravest first. ``swept``: settings that were meant to differ; None if that is not known."""
    runs = [run for group in groups for run in group.runs]
    names = _Names(groups)
    found = [Flag("left out", line) for line in left_out]
    found += [Flag("state", f"{names.of(run)} is {run.state}") for run in runs if run.state != "finished"]
    found += [
        Flag("state", f"{names.of(run)} has no evaluation: it counts in the training metrics only")
        for run in runs
        if not run.curves.evaluations
    ]
    found += _budget(runs, names)
    model, held_out = _model(runs, names, swept or ()), _held_out(runs, names)
    found += model + held_out + _data(runs, names, swept or ()) + (_starts(runs, names) if not model + held_out else [])
    described = [run for run in runs if run.run.provenance]
    if len(described) < len(runs):
        others = names.all([run for run in runs if not run.run.provenance])
        found.append(Flag("code", f"without provenance.json, code, versions and device are unknown: {others}"))
    found += _code(described, names)
    found += _devices(described, names) + _compilation(runs, names)
    found += _settings(groups, names, swept)
    found += _seeds(groups)
    return found


class _Names:
    """Names of runs in flags: the label and the seed, or the label alone for a whole group."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups

    def of(self, run: ComparedRun) -> str:
        label = next(group.label for group in self._groups if any(each is run for each in group.runs))
        return f"{label} (seed {run.seed}, {run.name})"

    def all(self, runs: Sequence[ComparedRun]) -> str:
        names = []
        for group in self._groups:
            own = [run for run in group.runs if any(each is run for each in runs)]
            if len(own) == len(group.runs):
                names.append(group.label)
            elif own:
                names.append(f"{group.label} (seed {', '.join(str(run.seed) for run in own)})")
        return ", ".join(names)

    def by_value(self, runs: Sequence[ComparedRun], value: Callable[[ComparedRun], str]) -> str:
        """``VALUE (RUNS); VALUE (RUNS)`` if the runs have several values, else an empty text."""
        members: dict[str, list[ComparedRun]] = {}
        for run in runs:
            members.setdefault(value(run), []).append(run)
        return "; ".join(f"{key}: {self.all(own)}" for key, own in members.items()) if len(members) > 1 else ""


def _setting(name: str) -> Callable[[ComparedRun], str]:
    return lambda run: shown(run.settings.get(name))


def _setting_flags(runs: Sequence[ComparedRun], names: _Names, kind: Kind, keys: Sequence[str]) -> list[Flag]:
    told = ((key, names.by_value(runs, _setting(key))) for key in keys)
    return [Flag(kind, f"{key} differs: {text}") for key, text in told if text]


def _held_out(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    every = {name for run in runs for name in run.settings}
    task = {f"data.{run.settings.get('data.task')}." for run in runs}
    keys = [name for name in sorted(every) if name.startswith(("evaluation.", *task)) or name in _HELD_OUT]
    keys = [name for name in keys if name != "evaluation.every"]
    found = _setting_flags(runs, names, "held-out", keys)
    with_scores = [run for run in runs if run.curves.evaluations]
    counts = names.by_value(with_scores, lambda run: f"{run.curves.final('eval/prompts') or 0:.0f} problems")
    found += [Flag("held-out", f"the held-out sets have different sizes: {counts}")] * bool(counts)
    with_samples = [run for run in runs if run.run.steps("eval")]
    content = names.by_value(with_samples, lambda run: f"set {held_out_fingerprint(run)}") if with_samples else ""
    found += [Flag("held-out", f"the held-out problems differ: {content}")] * bool(content)
    return found


def _data(runs: Sequence[ComparedRun], names: _Names, swept: Sequence[str]) -> list[Flag]:
    """Lines about the content of files: settings may be equal, and the files behind them not."""
    if any(name.startswith("data.") for name in swept):
        return []
    recorded = {id(run): recorded_data(run.run.directory) for run in runs}
    found = []
    for name in sorted({name for each in recorded.values() for name in each}):
        own = [run for run in runs if name in recorded[id(run)]]
        text = names.by_value(own, _recorded(recorded, name))
        kind: Kind = "held-out" if name.startswith("held-out") else "model" if name == "tokenizer" else "data"
        found += [Flag(kind, f"{name} differs: {text}")] * bool(text)
    return found


def _recorded(recorded: Mapping[int, Mapping[str, str]], name: str) -> Callable[[ComparedRun], str]:
    return lambda run: recorded[id(run)][name]


def held_out_fingerprint(run: ComparedRun) -> str:
    """A short hash of the held-out problems of a run: set, place, problem and prompt of the first stored evaluation."""
    digest = hashlib.sha256()
    for record in run.run.rollouts(run.run.steps("eval")[0], "eval"):
        if record.base == 0:
            digest.update(repr((record.benchmark, record.problem_id, list(record.prompt_ids))).encode())
    return digest.hexdigest()[:8]


def _starts(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    """Runs of one seed score the same before training, because their noise and their weights are the same."""
    found = []
    for seed in sorted({run.seed for run in runs}):
        own = [run for run in runs if run.seed == seed and (c := run.curves.curve("greedy")) and c.steps[0] == 0]
        text = names.by_value(own, lambda run: f"greedy {run.curves.evaluations['greedy'].values[0]:.4g}")
        if text:
            found.append(
                Flag(
                    "held-out",
                    f"seed {seed}: the scores before training differ, so the start weights, the held-out set, the code "
                    f"or the machine do: {text}",
                )
            )
    return found


def _budget(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    found = _setting_flags(runs, names, "budget", _BUDGET)
    finished = [run for run in runs if run.state == "finished" and "sampled_tokens" in run.curves.totals]
    spent = [run.curves.totals["sampled_tokens"] for run in finished]
    if spent and min(spent) < (1 - SPENT_TOLERANCE) * max(spent):
        text = names.by_value(finished, lambda run: f"{run.curves.totals['sampled_tokens']:,.0f}")
        found.append(Flag("budget", f"the runs spent different numbers of sampled tokens: {text}"))
    return found


def _model(runs: Sequence[ComparedRun], names: _Names, swept: Sequence[str]) -> list[Flag]:
    keys = sorted({name for run in runs for name in run.settings if name.startswith("model.") and name not in swept})
    return _setting_flags(runs, names, "model", keys)


def _code(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    found = []
    commits = names.by_value(runs, lambda run: " and ".join(_commits(run)))
    found += [Flag("code", f"the runs used different code: {commits}")] * bool(commits)
    dirty = [run for run in runs if any((one.get("git") or {}).get("dirty") for one in _provenances(run))]
    if dirty:
        found.append(Flag("code", f"the code had changes that no commit holds: {names.all(dirty)}"))
    packages = sorted({name for run in runs for name in run.run.provenance.get("versions") or {}})
    for name in packages:
        text = names.by_value(runs, _version(name))
        found += [Flag("code", f"the version of {name} differs: {text}")] * bool(text)
    return found


def _devices(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    device = names.by_value(runs, lambda run: str(run.run.provenance.get("device_kind", "unknown")))
    found = [Flag("machine", f"the devices differ, so seconds do not compare: {device}")] * bool(device)
    return found


def _compilation(runs: Sequence[ComparedRun], names: _Names) -> list[Flag]:
    found = []
    timed = [run for run in runs if {"compile_seconds", "wall_seconds"} <= set(run.curves.totals)]
    compiled = [run.curves.totals["compile_seconds"] for run in timed]
    if timed and max(compiled) - min(compiled) > SECONDS_TOLERANCE * min(
        r.curves.totals["wall_seconds"] for r in timed
    ):
        text = names.by_value(timed, lambda run: f"{run.curves.totals['compile_seconds']:.0f} s")
        found.append(Flag("machine", f"the seconds hold compilation, some of it fetched from a cache: {text}"))
    return found


def _version(package: str) -> Callable[[ComparedRun], str]:
    return lambda run: str((run.run.provenance.get("versions") or {}).get(package))


def _provenances(run: ComparedRun) -> list[dict[str, Any]]:
    """The provenance of each start of the run, as far as it is known; a run may have been resumed."""
    return [*run.run.provenance.get("earlier", []), dict(run.run.provenance)]


def _commits(run: ComparedRun) -> list[str]:
    commits = [str((one.get("git") or {}).get("commit") or "unknown")[:10] for one in _provenances(run)]
    return list(dict.fromkeys(commits))


def _settings(groups: Sequence[Group], names: _Names, swept: Sequence[str] | None) -> list[Flag]:
    runs = [run for group in groups for run in group.runs]
    found = []
    for group in groups:  # only --by puts different settings into one group
        for key in differing(group.runs):
            told = _Names([group]).by_value(group.runs, _setting(key))
            found.append(Flag("settings", f"{group.label} mixes values of {key}: {told}"))
    if swept is not None:
        more = [name for name in differing(runs) if name not in swept]
        if more:
            meant, others = ", ".join(swept) or "the seed", ", ".join(more)
            found.append(Flag("settings", f"the runs differ in more than {meant}: {others}"))
    for run in runs:
        if former := sorted(run.run.directory.path.glob("config.step_*.yaml")):
            steps = ", ".join(str(int(path.name.removeprefix("config.step_").removesuffix(".yaml"))) for path in former)
            found.append(Flag("settings", f"{names.of(run)} changed its settings after step {steps}"))
    return found


def _seeds(groups: Sequence[Group]) -> list[Flag]:
    found = []
    if len({tuple(group.seeds) for group in groups}) > 1:
        each = "; ".join(f"{group.label}: {', '.join(map(str, group.seeds))}" for group in groups)
        found.append(Flag("seeds", f"the groups have different seeds, and pairs need the same: {each}"))
    for group in groups:
        if len(group.seeds) < len(group.runs):
            twice = [seed for seed in group.seeds if sum(run.seed == seed for run in group.runs) > 1]
            text = ", ".join(map(str, twice))
            found.append(Flag("seeds", f"{group.label} has several runs of seed {text}; each counts as a replicate"))
    if all(len(group.runs) == 1 for group in groups):
        text = "each group has one run: the noise between seeds is unknown, so there are no bands and no intervals"
        found.append(Flag("seeds", text))
    return found
