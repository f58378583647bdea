"""The records of a run as columns: a pandas or polars data frame if one of them is installed, else a dict of lists."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.stored_run import StoredRun

Frame = Literal["auto", "pandas", "polars", "columns"]


def read_metrics(run: str | Path, *, kind: str = "train", frame: Frame = "auto") -> Any:
    """The metrics of a run, one row for each step.

    Args:
      run: the run's directory.
      kind: ``train``, or ``eval`` for the held-out metrics.
      frame: what to return; ``auto``: a data frame of pandas, else of polars, if one is installed, else columns.

    Raises:
      ConfigError: there is no run, its metrics are damaged, or ``frame`` is not installed.
    """
    records = [record for record in StoredRun.open(run).records if record["kind"] == kind]
    names = dict.fromkeys(name for record in records for name in record)
    return _framed({name: [record.get(name) for record in records] for name in names}, frame)


def read_rollouts(
    run: str | Path,
    *,
    steps: Sequence[int] | None = None,
    kind: Literal["train", "eval"] = "train",
    frame: Frame = "auto",
) -> Any:
    """The rollouts of a run, one row for each; columns are the fields of `fr3e_jax.runs.rollout_store.RolloutRecord`.

    Texts are among them.

    Args:
      run: the run's directory.
      steps: training steps; None: all that are stored.
      kind: rollouts of training steps, or the samples of evaluations (``eval``).
      frame: as for `read_metrics`.

    Raises:
      ConfigError: there is no run, a step is not stored, or a file is damaged.
    """
    stored = StoredRun.open(run)
    stem: Literal["step", "eval"] = "step" if kind == "train" else "eval"
    stored_steps = stored.steps(stem)
    if missing := sorted(set(steps or ()) - set(stored_steps)):
        raise ConfigError(f"{run} has no rollouts of steps {missing}; it has those of {stored_steps or 'no step'}")
    chosen = stored_steps if steps is None else steps
    records = [record for step in chosen for record in stored.rollouts(step, stem)]
    names = [field.name for field in dataclasses.fields(records[0])] if records else []
    columns: dict[str, list[Any]] = {name: [getattr(record, name) for record in records] for name in names}
    return _framed(columns, frame)


def _framed(columns: Mapping[str, list[Any]], frame: Frame) -> Any:
    for name in ("pandas", "polars") if frame == "auto" else () if frame == "columns" else (frame,):
        try:
            make: Callable[..., Any] = importlib.import_module(name).DataFrame
        except ImportError as error:
            if frame != "auto":
                raise ConfigError(f"frame={frame!r}, but {name} is not installed; pip install {name}") from error
            continue
        return make(columns) if name == "pandas" else make(columns, strict=False)
    return dict(columns)
