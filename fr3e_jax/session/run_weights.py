"""The weights of a run's checkpoint, for verbs that read runs: they change nothing there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import ModelConfig
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.reshard import NonFiniteWeights
from fr3e_jax.rollouts.requests import NonFiniteLogits
from fr3e_jax.runs.checkpoint_content import DamagedCheckpoint
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.session import Session


def load_run_params(session: Session, run_dir: Path | None, step: int | None = None) -> tuple[Params, int]:
    """Weights and step of a run's checkpoint; without a run, the weights that a run would start from, and 0.

    ``step``: which checkpoint; None: the newest. Nothing in the run is changed, because the run may still be training.
    """
    if run_dir is None:
        return session.model.fresh_params(session.config), 0
    model = session.model
    return read_run_params(run_dir, model.sharded_abstract_params(), step, base=model.base_fingerprint())


def read_run_params(run_dir: Path, abstract: Params, step: int | None = None, *, base: str = "") -> tuple[Params, int]:
    """Weights of a run's checkpoint, in the layout of ``abstract``, and the checkpoint's step.

    Args:
      run_dir: the run's directory.
      abstract: shapes, types and shardings of the weights.
      step: which checkpoint; None: the newest.
      base: a hash of the weights below the adapters (`fr3e_jax.session.model.Model.base_fingerprint`).

    Raises:
      FileNotFoundError: there is no run, no checkpoint, or none of that step.
      ValueError: the checkpoint is damaged, its weights have other shapes than ``abstract``, or its adapters belong to
        another base.
    """
    run = RunDirectory.existing(run_dir)
    if not run.checkpoints.is_dir():
        raise FileNotFoundError(f"{run.checkpoints} does not exist; expected the checkpoints of a run of train or sft")
    with Checkpointer(run.checkpoints, read_only=True) as checkpoints:
        step = checkpoints.latest_step() if step is None else step
        if step is None:
            raise FileNotFoundError(f"{run.checkpoints} holds no checkpoint yet; expected at least one complete step")
        try:
            arrays, host = checkpoints.restore(step, {"params": abstract}, partial=True)
        except DamagedCheckpoint as error:
            raise DamagedCheckpoint(
                f"{error}; the steps there are {checkpoints.all_steps()}; fr3e train --resume moves damaged ones away "
                "and goes on from a whole one"
            ) from error
    trained_on = host.get("identity", {}).get("base_weights", base)
    if trained_on != base:
        raise ValueError(
            f"the adapters of step {step} of {run_dir} were trained on other base weights ({trained_on}) than those "
            f"that model.path now gives ({base}); put the former weights back, or name them with model.path"
        )
    return arrays["params"], step


@contextlib.contextmanager
def refused_weights(model: ModelConfig, run_dir: Path | None, step: int) -> Iterator[None]:
    """Raise `NonFiniteLogits` and `NonFiniteWeights` as a `ConfigError` that names the weights.

    They are those of a run's ``step``, or of the model.
    """
    try:
        yield
    except (NonFiniteLogits, NonFiniteWeights) as error:
        if run_dir is not None:
            weights, advice = f"the weights of step {step} of {run_dir}", "use an earlier checkpoint or another run"
        else:
            weights, advice = f"the weights of model.path={model.path}", "use other weights"
        wider = "" if model.compute_dtype == "float32" else ", or set model.compute_dtype=float32"
        raise ConfigError(f"{weights} cannot be used: {error}; {advice}{wider}") from error
