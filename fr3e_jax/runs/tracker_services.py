"""The services behind ``runtime.trackers``: Weights & Biases, Trackio, MLflow.

Each reads environment variables of its own: WANDB_MODE=offline, WANDB_ENTITY, TRACKIO_DIR, TRACKIO_SPACE_ID,
MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fr3e_jax.configuration.settings import flat_settings
from fr3e_jax.runs.trackers import TrackedRun, Tracker

_LONGEST_PARAMETER = 500  # characters that every MLflow store takes
_MOST_AT_ONCE = 100  # parameters or metrics of one request to MLflow


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
        for some in _parts(parameters):
            self._client.log_batch(self._id, params=some)
        self._client.log_dict(self._id, dict(run.provenance), "provenance.json")
        return self._id

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        records = [self._metric(_allowed(name), value, now, step) for name, value in numbers.items()]
        for some in _parts(records):
            self._client.log_batch(self._id, metrics=some)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        content = {"columns": list(columns), "data": [list(row) for row in rows]}
        self._client.log_dict(self._id, content, f"{_allowed(name)}/step_{step:06d}.json")

    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """A name that every MLflow store takes: updates/empty becomes updates.empty, as ``updates`` is no folder."""
    return re.sub(r"[^\w\-. ]", "_", name.replace("@", "_at_").replace("/", "."))


def _parts(records: Sequence[Any]) -> list[Sequence[Any]]:
    return [records[start : start + _MOST_AT_ONCE] for start in range(0, len(records), _MOST_AT_ONCE)]


SERVICES: dict[str, Callable[[], Tracker]] = {"wandb": Wandb, "trackio": Trackio, "mlflow": Mlflow}
