"""The records of a run as columns, from which ``pandas.DataFrame`` or ``polars.DataFrame`` makes a data frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.stored_run import StoredRun


def read_metrics(run: str | Path, *, kind: str = "train") -> dict[str, list[Any]]:
    """The metrics of a run by name, a value for each step; None where a step has none.

    Args:
      run: the run's directory.
      kind: ``train``, or ``eval`` for the held-out metrics.

    Raises:
      ConfigError: there is no run, or its metrics are damaged.
    """
    records = [record for record in StoredRun.open(run).records if record["kind"] == kind]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def read_rollouts(
    run: str | Path,
    *,
    steps: Sequence[int] | None = None,
    kind: Literal["train", "eval"] = "train",
) -> dict[str, list[Any]]:
    """The rollouts of a run by field, a value for each: the fields of `fr3e_jax.runs.rollout_store.RolloutRecord`.

    Texts are among them. A run without rollouts has no fields.

    Args:
      run: the run's directory.
      steps: training steps; None: all that are stored.
      kind: rollouts of training steps, or the samples of evaluations (``eval``).

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
    return {name: [getattr(record, name) for record in records] for name in names}
