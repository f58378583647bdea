"""Changes since the checkpoint that a resumed run goes on from: settings, data, versions, records of its steps."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.provenance import collect, read_provenance
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.problem import Problem
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.runs.run_directory import RunDirectory

HASHED_PROBLEMS = 20_000  # of a split; a longer one is looked at in so many places
READ_BYTES = 200_000_000  # of compressed rollouts, the newest; earlier files only have to be there
MUST_AGREE = ("seed", "data.seed", "data.weights")
"""Settings that change which prompts and which noise follow: a resumed run with others is another run."""


def fingerprint(problems: Sequence[Problem]) -> str:
    """The number of problems and a hash of their ids, prompts and golds.

    All of them are hashed, or `HASHED_PROBLEMS` evenly spaced ones. Files may move: only their content counts.
    """
    count = len(problems)
    places = range(count) if count <= HASHED_PROBLEMS else np.linspace(0, count - 1, HASHED_PROBLEMS).astype(int)
    digest = hashlib.sha256()
    for place in places:
        problem = problems[int(place)]
        digest.update(repr((problem.id, problem.prompt, problem.gold)).encode("utf-8", "surrogatepass"))
    return f"{count} problems, {digest.hexdigest()[:16]}"


def identity(config: Config, problems: Sequence[Problem]) -> dict[str, Any]:
    """The settings (but for ``runtime``) and the training data of a run, for the host state of its checkpoints."""
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name != "runtime"}
    return {"settings": json.loads(json.dumps(settings)), "training_data": fingerprint(problems)}


def changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each setting, and for the training data, that differ between two results of `identity`."""
    old, new = dict(_flat(saved["settings"])), dict(_flat(now["settings"]))
    lines = [
        f"{name}: {old.get(name, 'absent')!r} in the checkpoint, {new.get(name, 'absent')!r} now"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if saved["training_data"] != now["training_data"]:
        lines.append(f"training data: {saved['training_data']} in the checkpoint, {now['training_data']} now")
    return lines


def refuse_another_run(lines: Sequence[str], allowed: bool) -> None:
    """Refuse changes of the seed or of the training data, unless they are ``allowed``.

    Raises:
      ConfigError: with the lines of `changes` that are at fault.
    """
    faults = [line for line in lines if line.startswith(tuple(f"{name}: " for name in (*MUST_AGREE, "training data")))]
    if faults and not allowed:
        raise ConfigError(
            "the run to resume had another seed or other training data: " + "; ".join(faults) + ". Put them back, "
            "start a new run, or say --allow-changes to go on with the new ones"
        )


def version_changes(run_dir: RunDirectory) -> list[str]:
    """A line for each package, and for the code, that has another version than when the run last started."""
    saved, now = read_provenance(run_dir.path), collect()
    old, new = saved.get("versions", {}), now["versions"]
    pairs = [(name, old[name], new.get(name)) for name in old]
    commits = [((state or {}).get("commit") or "unknown") for state in (saved.get("git"), now["git"])]
    return [
        f"{name}: {was} before, {is_now} now" for name, was, is_now in [*pairs, ("code", *commits)] if was != is_now
    ]


def missing_records(run_dir: RunDirectory, step: int, *, rollouts: bool) -> list[str]:
    """Lines about metrics and stored rollouts of the steps up to ``step`` that are missing or unreadable."""
    recorded = {record["step"] for record in read_metrics(run_dir.metrics, kind="train")}
    missing = [number for number in range(1, step + 1) if number not in recorded]
    lines = [f"{run_dir.metrics} lacks the training metrics of {_steps(missing)}"] if missing else []
    if rollouts:
        broken, left = [], READ_BYTES
        for number in range(step, 0, -1):
            path = rollout_store.rollout_path(run_dir, number)
            size = path.stat().st_size if path.is_file() else 0
            left -= size
            if not size or (left > 0 and not rollout_store.is_whole(path)):
                broken.append(number)
        lines += [f"{run_dir.rollouts} lacks whole rollouts of {_steps(sorted(broken))}"] if broken else []
    return lines


def _steps(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"step{'s' * (len(numbers) > 1)} {shown}; training goes on without them"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
