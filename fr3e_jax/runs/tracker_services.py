"""The services that show the metrics of a run: TensorBoard, Weights & Biases, Trackio, MLflow.

All but TensorBoard read environment variables of their own: WANDB_MODE=offline, WANDB_ENTITY, TRACKIO_DIR,
TRACKIO_SPACE_ID, MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fr3e_jax.configuration.settings import flat_settings

_LONGEST_PARAMETER = 500  # characters that every MLflow store takes
_MOST_AT_ONCE = 100  # parameters or metrics of one request to MLflow


@dataclass(frozen=True)
class TrackedRun:
    """The facts of a run that a tracker learns at its start."""

    project: str
    name: str
    """Name of the run directory."""
    directory: Path
    id: str | None
    """Of the same run in an earlier process, which this one resumes; None: the run is new."""
    first_step: int
    """First step that this process writes; an earlier process may have written it and later ones, too."""
    settings: Mapping[str, Any]
    """All resolved settings, nested."""
    provenance: Mapping[str, Any]


class Tracker(Protocol):
    """One service. Any method may raise; all are called in one thread that is not the main one."""

    def start(self, run: TrackedRun) -> str:
        """Begin or resume the run; return its id with this service, or "" if it needs none."""
        ...

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record finite numbers of a step; those of an evaluation are named ``eval/...``."""
        ...

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Record a table of texts and numbers."""
        ...

    def finish(self, failed: bool) -> None:
        """End the run."""
        ...


class TensorBoard:
    """Event files in ``tensorboard/`` of the run directory."""

    def start(self, run: TrackedRun) -> str:
        from tensorboardX import SummaryWriter

        # purge_step makes TensorBoard ignore the events of the repeated steps in older event files.
        # File names count whole seconds: the suffix keeps a quick restart from overwriting the earlier file.
        suffix = f".from_step_{run.first_step}"
        folder = str(run.directory / "tensorboard")
        self._events = SummaryWriter(folder, purge_step=run.first_step, filename_suffix=suffix)
        return ""

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Do nothing: TensorBoard has no tables."""

    def finish(self, failed: bool) -> None:
        self._events.close()


class Wandb:
    """Weights & Biases. The x axis is the training step, also for what a resumed run writes again."""

    def start(self, run: TrackedRun) -> str:
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            config={**run.settings, "provenance": run.provenance},
            dir=str(run.directory),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        content = self._wandb.Table(columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True)
        self._run.log({"step": step, name: content})

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class Trackio:
    """Trackio, which knows a run by its name."""

    def start(self, run: TrackedRun) -> str:
        import trackio

        self._trackio = trackio
        config = {name: str(value) for name, value in {**run.settings, "provenance": run.provenance}.items()}
        self._run = trackio.init(run.project, name=run.id or run.name, resume="allow", config=config, embed=False)
        return run.id or run.name

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        content = self._trackio.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({name: content}, step=step)

    def finish(self, failed: bool) -> None:
        self._run.finish()


class Mlflow:
    """MLflow: the server of MLFLOW_TRACKING_URI, or files in ``mlruns/`` of the run directory."""

    def start(self, run: TrackedRun) -> str:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric: Callable[..., Any] = Metric
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or str(run.directory.resolve() / "mlruns"))
        if run.id:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
            return self._id
        earlier = self._client.get_experiment_by_name(run.project)
        experiment = earlier.experiment_id if earlier else self._client.create_experiment(run.project)
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        parameters = [Param(name, str(value)[:_LONGEST_PARAMETER]) for name, value in flat_settings(run.settings)]
        for batch in _batches(parameters):
            self._client.log_batch(self._id, params=batch)
        self._client.log_dict(self._id, dict(run.provenance), "provenance.json")
        return self._id

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        records = [self._metric(_allowed(name), value, now, step) for name, value in numbers.items()]
        for batch in _batches(records):
            self._client.log_batch(self._id, metrics=batch)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        content = {"columns": list(columns), "data": [list(row) for row in rows]}
        self._client.log_dict(self._id, content, f"{_allowed(name)}/step_{step:06d}.json")

    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """A name that every MLflow store takes: updates/empty becomes updates.empty, as ``updates`` is no folder."""
    return re.sub(r"[^\w\-. ]", "_", name.replace("@", "_at_").replace("/", "."))


def _batches(records: Sequence[Any]) -> list[Sequence[Any]]:
    return [records[start : start + _MOST_AT_ONCE] for start in range(0, len(records), _MOST_AT_ONCE)]


SERVICES: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
}
