"""Changes since the checkpoint that a resumed run goes on from: settings, data, versions, records of its steps.

`train`, `sft` and `rft` share it. `fr3e_jax.runs.checkpoints` finds the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.provenance import collect, read_provenance
from fr3e_jax.configuration.settings import flat_settings
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.runs.rollout_parts import rollout_path, stored_bytes
from fr3e_jax.runs.run_directory import RunDirectory

READ_BYTES = 200_000_000  # of compressed rollouts, the newest; earlier files only have to be there
MUST_AGREE = (
    *("seed", "data.seed", "data.weights", "data.train_problems"),
    *("training data", "demonstrations", "held-out data", "tokenizer"),
    *("base weights", "teacher weights", "network"),
)
"""Settings, data and networks that change which prompts, tokens and noise follow, or which scores are compared."""

_FINGERPRINTS = {
    "training_data": "training data",
    "demonstrations": "demonstrations",
    "tokenizer": "tokenizer",
    "base_weights": "base weights",
    "teacher_weights": "teacher weights",
}


def since_checkpoint(
    host: Mapping[str, Any], now: Mapping[str, Any], run_dir: RunDirectory, verb: str, allowed: bool
) -> list[str]:
    """A line for each difference between the run that saved a checkpoint and the run that goes on from it.

    Args:
      host: the checkpoint's host state, with the ``verb`` and the ``identity`` of its run.
      now: the `identity` of the resumed run.
      run_dir: the directory of both.
      verb: the verb of the resumed run.
      allowed: ``runtime.allow_changes``.

    Raises:
      ConfigError: another verb; or, unless they are ``allowed``, changes of what is in `MUST_AGREE`.
    """
    if (saved_by := host.get("verb", verb)) != verb:
        raise ConfigError(
            f"{run_dir.path} is a run of fr3e {saved_by}; continue it with fr3e {saved_by} RECIPE --resume "
            f"{run_dir.path}, or name a run of fr3e {verb}"
        )
    lines = changes(host["identity"], now)
    refuse_another_run(lines, allowed)
    return lines + version_changes(run_dir)


def changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each setting, fingerprint and file of the user that differ between two results of `identity`.

    Only some runs have base weights or demonstrations; what the checkpoint lacks is passed over.
    """
    pairs = [*_differences(dict(flat_settings(saved["settings"])), dict(flat_settings(now["settings"])), repr)]
    labels = {key: label for key, label in _FINGERPRINTS.items() if key in saved}
    pairs += _differences(*({label: run.get(key) for key, label in labels.items()} for run in (saved, now)))
    for section, label in (("held_out_data", "held-out data"), ("files", "file of"), ("network", "network")):
        old, new = ({f"{label} {name}".strip(): each for name, each in x[section].items()} for x in (saved, now))
        pairs += _differences(old, new)
    return [f"{name}: {was} in the checkpoint, {is_now} now" for name, was, is_now in pairs]


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], shown: Callable[[Any], str] = str
) -> Iterator[tuple[str, str, str]]:
    """(name, old value, new value) of each entry that differs, as texts."""
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield name, shown(old.get(name, "absent")), shown(new.get(name, "absent"))


def refuse_another_run(lines: Sequence[str], allowed: bool) -> None:
    """Refuse changes of what is in `MUST_AGREE`, unless they are ``allowed``.

    Raises:
      ConfigError: with the lines of `changes` that are at fault.
    """
    faults = [line for line in lines if line.startswith(tuple(f"{name}{end}" for name in MUST_AGREE for end in ": "))]
    if faults and not allowed:
        raise ConfigError(
            "the run to resume had another seed, other data, another tokenizer, network, base or teacher: "
            + "; ".join(faults)
            + ". Put them back, start a new run, or say --allow-changes to go on with the new ones"
        )


def version_changes(run_dir: RunDirectory) -> list[str]:
    """A line for each package, and for the code, that has another version than when the run last started.

    A damaged record of the versions is one line, too.
    """
    damage: list[str] = []
    saved, now = read_provenance(run_dir.path, damage.append), collect()
    old, new = saved.get("versions", {}), now["versions"]
    pairs = [(name, old[name], new.get(name)) for name in old]
    commits = [((state or {}).get("commit") or "unknown") for state in (saved.get("git"), now["git"])]
    return damage + [
        f"{name}: {was} before, {is_now} now" for name, was, is_now in [*pairs, ("code", *commits)] if was != is_now
    ]


def missing_records(run_dir: RunDirectory, step: int, *, stored: bool) -> list[str]:
    """Lines about records of the steps up to ``step`` that are missing or unreadable.

    ``stored``: the run stores rollouts and the responses of evaluations.
    """
    records = read_metrics(run_dir.metrics)
    recorded, evaluated = ({r["step"] for r in records if r["kind"] == kind} for kind in ("train", "eval"))
    missing = sorted(set(range(1, step + 1)) - recorded)
    lines = [f"{run_dir.metrics} lacks the training metrics of {_steps(missing)}"] if missing else []
    if not stored:
        return lines
    if broken := _broken(run_dir, range(step, 0, -1), "step"):
        lines.append(f"{run_dir.rollouts} lacks whole rollouts of {_steps(broken)}")
    held_out = sorted(evaluated & set(range(step + 1)), reverse=True)
    if broken := _broken(run_dir, held_out, "eval"):
        lines.append(f"{run_dir.rollouts} lacks whole responses of the evaluation of {_steps(broken)}")
    return lines


def _broken(run_dir: RunDirectory, steps: Iterable[int], stem: str) -> list[int]:
    """The steps, of those given from the newest, whose file is missing, or damaged as far as files are read."""
    broken, left = [], READ_BYTES
    for step in steps:
        path = rollout_path(run_dir, step, stem=stem)
        size = stored_bytes(path)
        left -= size
        if not size or (left > 0 and not rollout_store.is_whole(path)):
            broken.append(step)
    return sorted(broken)


def _steps(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"step{'s' * (len(numbers) > 1)} {shown}; training goes on without them"
