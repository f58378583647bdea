"""The weights of a run's checkpoint, for verbs that read runs: they change nothing there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import ModelConfig
from fr3e_jax.policy.network import Params
from fr3e_jax.rollouts.requests import NonFiniteLogits
from fr3e_jax.runs.checkpoint_content import DamagedCheckpoint
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.model import Model
from fr3e_jax.session.run_identity import network_fields
from fr3e_jax.session.session import Session


def load_run_params(session: Session, run_dir: Path | None, step: int | None = None) -> tuple[Params, int]:
    """Weights and step of a run's checkpoint; without a run, the weights that a run would start from, and 0.

    ``step``: which checkpoint; None: the newest. Nothing in the run is changed, because the run may still be training.
    """
    if run_dir is None:
        return session.model.fresh_params(session.config), 0
    return read_run_params(run_dir, session.model, step)


def read_run_params(run_dir: Path, model: Model, step: int | None = None) -> tuple[Params, int]:
    """Weights of a run's checkpoint, in the layout of ``model``, and the checkpoint's step.

    Args:
      run_dir: the run's directory.
      model: the network, on its mesh.
      step: which checkpoint; None: the newest.

    Raises:
      FileNotFoundError: there is no run, no checkpoint, or none of that step.
      ValueError: the checkpoint is damaged, or its weights belong to another network or base than ``model``.
    """
    run = RunDirectory.existing(run_dir)
    if not run.checkpoints.is_dir():
        raise FileNotFoundError(f"{run.checkpoints} does not exist; expected the checkpoints of a run of train or sft")
    with Checkpointer(run.checkpoints, read_only=True) as checkpoints:
        step = checkpoints.latest_step() if step is None else step
        if step is None:
            raise FileNotFoundError(f"{run.checkpoints} holds no checkpoint yet; expected at least one complete step")
        try:
            arrays, host = checkpoints.restore(step, {"params": model.sharded_abstract_params()}, partial=True)
        except DamagedCheckpoint as error:
            raise DamagedCheckpoint(
                f"{error}; the steps there are {checkpoints.all_steps()}; fr3e train --resume moves damaged ones away "
                "and goes on from a whole one"
            ) from error
    _check_same_model(host.get("identity", {}), model, f"step {step} of {run_dir}")
    return arrays["params"], step


def _check_same_model(trained: Mapping[str, Any], model: Model, checkpoint: str) -> None:
    """Refuse weights whose run had, by its identity, another network or other weights below its adapters.

    Raises:
      ValueError: the files of model.path have changed since.
    """
    base, network = model.base_fingerprint(), network_fields(model.architecture)
    if (trained_on := trained.get("base_weights", base)) != base:
        raise ValueError(
            f"the adapters of {checkpoint} were trained on other base weights ({trained_on}) than those "
            f"that model.path now gives ({base}); put the former weights back, or name them with model.path"
        )
    was = trained.get("network", network)
    names = [name for name in network if was.get(name) != network[name]]
    if changed := [f"{name}={was.get(name)!r}, now {network[name]!r}" for name in names]:
        raise ValueError(
            f"the weights of {checkpoint} were trained in another network than config.json of model.path now "
            f"describes: {'; '.join(changed)}; put the former config.json back, or name its directory with model.path"
        )


@contextlib.contextmanager
def refused_weights(model: ModelConfig, run_dir: Path | None, step: int) -> Iterator[None]:
    """Raise `NonFiniteLogits` as a `ConfigError` that names the weights, those of a run's ``step`` or of the model."""
    try:
        yield
    except NonFiniteLogits as error:
        if run_dir is not None:
            weights, advice = f"the weights of step {step} of {run_dir}", "use an earlier checkpoint or another run"
        else:
            weights, advice = f"the weights of model.path={model.path}", "use other weights"
        wider = "" if model.compute_dtype == "float32" else ", or set model.compute_dtype=float32"
        raise ConfigError(f"{weights} cannot be used: {error}; {advice}{wider}") from error
