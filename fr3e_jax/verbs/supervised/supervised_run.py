"""The shared part of the verbs that fine-tune on responses: updates of cross-entropy, and a model at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.contradictions import BFLOAT16_ADVICE, LEAST_BFLOAT16_RATE, is_rounded_away
from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.settings import setting_value
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.finiteness import check_figures
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.packing import counted_tokens, pack
from fr3e_jax.learning.routers import balance_of, router_metrics
from fr3e_jax.loop.run import OngoingRun
from fr3e_jax.loop.state import open_learner
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.opening import OpenedRun, opened_run
from fr3e_jax.session.session import Session
from fr3e_jax.stores.reading import Place
from fr3e_jax.verbs.model_directory import save_model


class SupervisedRun(OngoingRun):
    """A run of supervised training, whose steps are optimizer steps; `train` chooses the responses to train on."""

    verb = ""
    on_demonstrations = False  # trains on those of the task

    def __init__(self, opened: OpenedRun, ledger: TokenLedger):
        session = opened.session
        learner, restored = open_learner(opened, session.model.train_programs(session.config, supervised=True))
        state = self.fresh_state(session, learner, ledger)
        if restored is not None:
            state.load_host_state(restored.host)
        super().__init__(opened, state, restored, **self.limits(session.config, state))
        self._norm: Any = ()  # gradient norm of the last dispatched step

    # -- defined by each verb -----------------------------------------------------------------------------------------

    @staticmethod
    def fresh_state(session: Session, learner: Learner, ledger: TokenLedger) -> Any:
        """The state of a fresh run, a `Progress`."""
        raise NotImplementedError

    @staticmethod
    def limits(config: Config, state: Any) -> dict[str, int]:
        """The limits of the display: ``max_steps``, and ``first_step`` as it counts them."""
        raise NotImplementedError

    def train(self) -> None:
        """Train to the end.

        Raises:
          Stopped: the run is asked to stop.
        """
        raise NotImplementedError

    # -- shared by the verbs ------------------------------------------------------------------------------------------

    def fine_tune(self, trunks: Sequence[TrainingTrunk], **packing: Any) -> Callable[[], dict[str, float]]:
        """Take one optimizer step of cross-entropy, the mean over the tokens that train.

        The step before is waited for: at most one is under way on return, and a stop has to wait for no more.

        ``packing``: options of `pack`, at least its ``shapes``. Returns a function that waits for the step and returns
        its metrics.
        """
        state, learner, counted = self.state, self.state.learner, int(counted_tokens(trunks).sum())
        gradients, parts = learner.programs.zero_gradients(learner.params), []
        with state.ledger.stage("update"):
            options = {"pad_id": self.session.texts.codec.pad_id, "shards": learner.programs.shards}
            options |= {"own_rows": learner.programs.own_rows} | packing
            micros = pack(trunks, **options)
            numbers = (
                counted,
                1.0,
                None,
                *balance_of(self.config.model.experts.balance_coefficient, learner.programs, micros),
            )
            for micro in micros:
                learner.trained_on = (micro.batch, *numbers)
                gradients, sums = learner.programs.accumulate(learner.params, gradients, *learner.trained_on)
                parts.append(sums)
                state.ledger.trained_positions += micro.positions
                state.ledger.padded_positions += micro.padded_positions
            learner.params, learner.optimizer_state, norm = learner.programs.apply(
                learner.params, learner.optimizer_state, gradients
            )
            jax.block_until_ready(self._norm)
            self._norm = norm
        state.ledger.loss_tokens += counted
        learner.updates += 1
        state.step, state.evaluated = learner.updates, {}
        return partial(_step_metrics, parts, norm, counted)

    def check_finite(self, metrics: dict[str, float]) -> None:
        """Raise `NonFiniteUpdate` if the loss or the gradient norm is not finite."""
        names = {"loss": "loss/supervised", "gradient norm": "gradient_norm/mean"}
        check_figures(f"update {self.state.step}", {name: metrics[key] for name, key in names.items()})
        self.last_metrics = {"step": self.state.step} | metrics

    def evaluate(self, stage: str = "evaluating") -> dict[str, float]:
        metrics = super().evaluate(stage)
        self.session.sampler.weights.release()
        return metrics

    def export(self, output: str = "") -> None:
        """Write the model into the Hugging Face directory ``output``; "": ``model/`` in the run directory."""
        directory = Path(output).expanduser() if output else self.opened.directory.path / "model"
        programs, processes = self.state.learner.programs, self.session.processes
        weights = processes.whole_on_first(programs.whole(self.state.learner.params))
        if processes.first:
            save_model(self.session, weights, directory)
            self.console.note(f"model: {directory} (use it with model.path={directory})")


def _step_metrics(parts: list[dict[str, jax.Array]], norm: jax.Array, counted: int) -> dict[str, float]:
    parts = jax.device_get(parts)

    def total(name: str) -> float:
        return sum(float(micro_batch[name]) for micro_batch in parts)

    return {
        "loss/supervised": total("loss"),
        "entropy/mean": total("entropy") / counted,
        "gradient_norm/mean": float(norm),
    } | router_metrics(parts, counted)


def start_run(
    kind: type[SupervisedRun],
    session: Session,
    config: Config,
    run_dir: Place | None,
    resume: bool,
    ledger: TokenLedger,
) -> int:
    """Open the run's directory and checkpoints, run, and return the exit code. ``config``: the settings to save.

    Raises:
      ConfigError: among others, weights in bfloat16 would hardly move at the verb's rate.
    """
    rate = setting_value(config, kind.rate)
    if rate and is_rounded_away(config.model, rate):
        raise ConfigError(
            f"model.param_dtype=bfloat16 rounds away most updates of {kind.rate}={rate:g} (at least "
            f"{LEAST_BFLOAT16_RATE:g} is expected); {BFLOAT16_ADVICE}"
        )
    demonstrations = kind.on_demonstrations
    code = 1
    with opened_run(session, kind.verb, run_dir, resume, config=config, demonstrations=demonstrations) as opened:
        code = kind(opened, ledger).carry_out(kind.train)
    return code or int(opened.mirror.has_failed)
