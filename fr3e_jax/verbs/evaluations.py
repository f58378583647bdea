"""Evaluations for ``fr3e eval``: their metrics, and every response.

Each evaluation has a folder of its own with ``metrics.json`` and ``rollouts/eval_STEP.jsonl.gz``, in ``evaluations/``
of the run, or of ``runtime.output_dir`` for a model. Its name ends in a hash of all that decides the result. So a call
that was interrupted, or that is repeated, finds what it has done already.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fr3e_jax.cluster.membership import across_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.evaluation_sets import best_metric
from fr3e_jax.configuration.schema import Config
from fr3e_jax.hub import model_directory
from fr3e_jax.loop.evaluate import evaluate
from fr3e_jax.loop.rollout_entries import records_of
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.runs.console import Console
from fr3e_jax.runs.run_directory import RunDirectory, write_json_atomic
from fr3e_jax.session.grading import GradingFailed
from fr3e_jax.session.run_identity import identity
from fr3e_jax.session.run_weights import load_run_params, refused_weights
from fr3e_jax.session.session import Session, open_session

FOLDER, METRICS = "evaluations", "metrics.json"
OF_EVERY_RESPONSE = ("max_response_tokens", "stop_tokens", "stop_texts", "param_dtype")
"""The settings of the section ``rollout`` that evaluations read."""
OF_REQUESTS = ("key_variable", "max_concurrency", "seconds", "cache")
"""The settings of a judge that change no verdict."""


@dataclass(frozen=True)
class Subject:
    """The subject of an evaluation: the checkpoints of a run, or the model that the settings name.

    Attributes:
      config: the settings, with the run's model settings.
      run_dir: the run; None: the model.
      steps: checkpoints of the run; empty: the newest.
    """

    config: Config
    run_dir: Path | None = None
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Result:
    """The metrics of one evaluation; ``folder`` has them and every response."""

    name: str
    metrics: dict[str, float]
    best: str
    folder: str


@across_processes
def evaluate_all(first: Config, subjects: Sequence[Subject], results: list[Result]) -> int:
    """Evaluate each subject and append its result to ``results``, on the first process; return the exit code.

    ``first`` are the settings of the first subject, which start the processes.
    """
    for subject in subjects:
        session = open_session(subject.config)
        with session.grader:
            for step in _steps(subject) if subject.run_dir else (0,):
                try:
                    result = _evaluation(session, subject, step)
                except GradingFailed as error:
                    print(f"fr3e: {error}", file=sys.stderr)
                    return 1
                if session.processes.first:
                    results.append(result)
    return 0


def _steps(subject: Subject) -> tuple[int, ...]:
    """The checkpoints to evaluate.

    Raises:
      ConfigError: the run has no checkpoint, or not one of these steps.
    """
    with as_config_error():
        run = RunDirectory.existing(Path(subject.run_dir or ""))
    if not run.checkpoints.is_dir():
        raise ConfigError(f"{run.checkpoints} does not exist; expected the checkpoints of a run of train, sft or rft")
    with Checkpointer(run.checkpoints, read_only=True) as checkpoints:
        saved_steps = checkpoints.all_steps()
    if not saved_steps:
        raise ConfigError(f"{run.checkpoints} holds no checkpoint yet; expected at least one complete step")
    if absent := [step for step in subject.steps if step not in saved_steps]:
        raise ConfigError(
            f"{run.path} has no checkpoint of step {absent[0]}; expected some of {', '.join(map(str, saved_steps))}"
        )
    return subject.steps or (saved_steps[-1],)


def _evaluation(session: Session, subject: Subject, step: int) -> Result:
    """One evaluation, or its stored result if it was made before with the same weights, problems and settings."""
    run_dir, config = subject.run_dir, session.config
    name = f"{run_dir.resolve().name} step {step}" if run_dir else config.model.path or "random weights"
    # Times of files differ from host to host, and the folder has one name.
    described = session.processes.on_first(lambda: _described(session, run_dir, step))
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:8]
    parent = run_dir if run_dir else Path(config.runtime.output_dir).expanduser()
    label = f"step_{step:06d}" if run_dir else Path(config.model.path or "random").resolve().name
    folder = RunDirectory(parent / FOLDER / f"{label}-{digest}")
    stored = session.processes.on_first(lambda: _stored(folder))
    if stored is not None:
        if session.processes.first:
            print(f"{name}: evaluated before, see {folder.path}", file=sys.stderr)
        return Result(name, stored, best_metric(config.evaluation, config.data.eval), str(folder.path))
    shown = config.runtime.console if session.processes.first else "none"
    console = Console(shown, stream=sys.stderr, compiled=compilations)
    session.sampler.report = console.progress
    with console:
        console.stage(f"evaluating {name}")
        with as_config_error():
            params, _ = load_run_params(session, run_dir, step)
        with refused_weights(config.model, run_dir, step):
            evaluation = evaluate(session, params, console.note)
    session.sampler.weights.release()
    if session.processes.first:
        if config.runtime.store_rollouts:
            records = records_of(evaluation.entries(step), session.texts)
            rollout_store.write_rollouts(folder, step, records, stem="eval")
        # Last, as it says that the evaluation is whole.
        write_json_atomic(folder.path / METRICS, {"of": described, "metrics": evaluation.metrics})
    return Result(name, evaluation.metrics, best_metric(config.evaluation, config.data.eval), str(folder.path))


def _described(session: Session, run_dir: Path | None, step: int) -> dict[str, Any]:
    """All that decides the result: weights, problems, tokenizer, settings of sampling and grading."""
    config = session.config
    identified = identity(config, session.task, session.texts.codec, session.model.architecture)
    sections = ("seed", "model", "data", "evaluation", "rewards", "judge", "tools", "environment", "rollout")
    settings = {name: identified["settings"][name] for name in sections}
    settings["judge"] = {name: x for name, x in settings["judge"].items() if name not in OF_REQUESTS}
    settings["rollout"] = {name: settings["rollout"][name] for name in OF_EVERY_RESPONSE}
    folder = (run_dir / "checkpoints" / str(step)) if run_dir else model_directory(config.model.path or ".")
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if run_dir or config.model.path else []
    if adapters := config.model.lora.path:
        files += sorted(path for path in Path(adapters).expanduser().rglob("*") if path.is_file())
    weights = [[os.path.relpath(path, folder), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    parts = ("held_out_data", "tokenizer", "files")
    return {"step": step, "weights": weights, "settings": settings} | {name: identified[name] for name in parts}


def _stored(folder: RunDirectory) -> dict[str, float] | None:
    """The metrics of an evaluation that was finished; None if there are none."""
    try:
        metrics = json.loads((folder.path / METRICS).read_bytes())["metrics"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return metrics if isinstance(metrics, dict) else None
