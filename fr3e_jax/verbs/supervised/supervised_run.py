"""The shared part of the verbs that fine-tune on responses: a run with checkpoints, and a model at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.contradictions import BFLOAT16_ADVICE, LEAST_BFLOAT16_RATE, is_rounded_away
from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.settings import setting_value
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.finiteness import check_figures, check_weights
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.packing import counted_tokens, pack
from fr3e_jax.learning.routers import balance_of, router_metrics
from fr3e_jax.loop.evaluate import evaluate
from fr3e_jax.loop.rollout_entries import Entry, of_part, records_of
from fr3e_jax.loop.run_report import NON_FINITE, non_finite_message
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.checkpoint_content import CheckpointFailed
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.runs.console import Console
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.runs.metrics import MetricsWriter
from fr3e_jax.runs.run_directory import write_json_atomic
from fr3e_jax.runs.run_lock import RunDirectoryGone
from fr3e_jax.runs.run_state import StatusFile
from fr3e_jax.runs.signals import Stopped, StopRequest
from fr3e_jax.runs.trackers import open_trackers
from fr3e_jax.session.grading import GradingFailed
from fr3e_jax.session.opening import OpenedRun, opened_run
from fr3e_jax.session.session import Session
from fr3e_jax.stores.reading import Place
from fr3e_jax.verbs.model_directory import save_model


class SupervisedRun:
    """A run of supervised training: checkpoints, metrics, evaluations before and after, and the model at the end.

    A subclass is a verb. Its `run` chooses the responses to train on; its `state` and `restore` extend a checkpoint.
    """

    verb = ""
    rate = ""  # name of its learning-rate setting
    on_demonstrations = False  # trains on those of the task

    def __init__(self, opened: OpenedRun, ledger: TokenLedger, *, max_steps: int):
        session, run = opened.session, opened.directory
        self.opened, self.session, self.config, self.run_dir = opened, session, session.config, run
        self.checkpoints, self.ledger = opened.checkpoints, ledger
        self.stop = StopRequest(session.processes.asked_to_stop)
        session.sampler.engine.stop_here = self.stop.check
        opened.mirror.is_stopping = self.stop.is_asked
        self.status = StatusFile(run, writes=session.processes.first)
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}  # held-out metrics of a finished run
        self.last_metrics: dict[str, Any] = {}  # of the last update seen to be finite
        self.first = session.processes.first  # one process writes metrics, checkpoints and the model
        programs = session.model.train_programs(session.config, supervised=True)
        self.resumed_step: int | None = None
        self.changes: list[str] = []  # since the checkpoint, a line for each
        restored = opened.restore(programs.abstract_arrays())
        if restored is None:
            params = session.model.fresh_params(session.config)
            self.learner = Learner(programs, params, programs.init_optimizer(params))
        else:
            self.resumed_step, arrays, host, self.changes = restored
            self.learner = Learner(programs, arrays["params"], arrays["optimizer"], host["step"])
            self.before, self.after = host["before"], host["after"]
            ledger.load_state_dict(host["ledger"])
            self.restore(host)
        self.metrics = MetricsWriter(run, resume_step=self.resumed_step) if self.first else None
        self.trackers = open_trackers(self.config, run, self.resumed_step, writes=self.first)
        shown = self.config.runtime.console if self.first else "none"
        self.console = Console(shown, max_steps=max_steps, first_step=self.finished_steps(), compiled=compilations)
        session.sampler.report = self.console.progress

    def start(self) -> int:
        """Run to the end, to a signal, a failed write or numbers that are not finite; return the exit code."""
        code = 1
        try:
            code = self._start()
        finally:
            self.trackers.finish(failed=code != 0)
        return code

    def _start(self) -> int:
        with self.status:
            try:
                with self.console, self.stop:
                    for line in self.changes if self.first else ():
                        print(f"fr3e: {line}", file=sys.stderr)
                    return self._run_or_stop()
            except (CheckpointFailed, RunDirectoryGone, GradingFailed) as error:
                return self.failed(str(error))
            except NON_FINITE as error:
                newest, last = self.checkpoints.latest_step(), self.last_metrics
                message = non_finite_message(self.config, error, last, self.step, newest, self.opened.way_on, self.rate)
                return self.failed(message)

    def _run_or_stop(self) -> int:
        try:
            return self.run()
        except Stopped as signal:
            if self.step > (self.resumed_step or 0):
                self.save()
            saved = f"step {self.step} is saved" if self.step else "nothing was to be saved"
            self.console.note(f"{signal}: {saved}; continue with --resume")
            self.status.end("stopped", str(signal))
            return 0

    def failed(self, message: str, where: str = "") -> int:
        """Say why the run ends ``where``, at its step if that is empty; return the exit code."""
        where = where or f"at step {self.step}"
        print(f"fr3e: stopped {where}: {message}", file=sys.stderr)
        self.status.end("failed", f"{where}: {message}")
        return 1

    # -- defined by each verb -----------------------------------------------------------------------------------------

    def run(self) -> int:
        """Train to the end or to a signal; return the exit code. `start` calls it."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """JSON content of a checkpoint beside the weights, the step and the ledger."""
        raise NotImplementedError

    def restore(self, host: dict[str, Any]) -> None:
        """Restore the content of `state`; the constructor calls this method."""
        raise NotImplementedError

    def finished_steps(self) -> int:
        """The number of finished steps, as the display counts them."""
        return self.step

    # -- shared by the verbs -----------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Optimizer steps so far; metrics and checkpoints carry this number."""
        return self.learner.updates

    def fine_tune(self, trunks: Sequence[TrainingTrunk], **packing: Any) -> Callable[[], dict[str, float]]:
        """Take one optimizer step of cross-entropy, the mean over the tokens that train.

        ``packing``: options of `pack`, at least its ``shapes``. Returns a function that waits for the step and returns
        its metrics.
        """
        learner, counted = self.learner, int(counted_tokens(trunks).sum())
        gradients, parts = learner.programs.zero_gradients(learner.params), []
        with self.ledger.stage("update"):
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
                self.ledger.trained_positions += micro.positions
                self.ledger.padded_positions += micro.padded_positions
            learner.params, learner.optimizer_state, norm = learner.programs.apply(
                learner.params, learner.optimizer_state, gradients
            )
        self.ledger.loss_tokens += counted
        learner.updates += 1
        self.after = {}
        return partial(_step_metrics, parts, norm, counted)

    def check_finite(self, metrics: dict[str, float]) -> None:
        """Raise `NonFiniteUpdate` if the loss or the gradient norm is not finite; call it before each checkpoint."""
        names = {"loss": "loss/supervised", "gradient norm": "gradient_norm/mean"}
        check_figures(f"update {self.step}", {name: metrics[key] for name, key in names.items()})
        self.last_metrics = {"step": self.step} | metrics

    def evaluate_start(self) -> dict[str, float]:
        """The held-out metrics of the start; empty if they are not asked for, or the start is past."""
        return self.evaluate() if self.config.evaluation.start and not self.step else {}

    def evaluate(self) -> dict[str, float]:
        """Evaluate the current weights; write and return the held-out metrics."""
        self.console.stage("evaluating")
        with self.ledger.stage("evaluate"):
            evaluation = evaluate(self.session, self.learner.params, self.console.note)
        self.session.sampler.weights.release()
        if self.config.runtime.store_rollouts:
            self.store(evaluation.entries(self.step), self.step, "eval")
        self.write(evaluation.metrics, kind="eval")
        return evaluation.metrics

    def store(self, entries: Iterable[Entry], step: int, stem: str) -> None:
        """Write this process's part of ``entries``, a file of rollouts; return when all parts are on disk."""
        self.opened.lock.check()
        records = records_of(of_part(entries, self.opened.part), self.session.texts)
        rollout_store.write_rollouts(self.run_dir, step, records, stem=stem, part=self.opened.part)
        self.session.processes.agree(f"{stem} {step}, stored")

    def write(self, metrics: dict[str, float], kind: str = "train") -> None:
        """Write metrics of the current step, on the first process."""
        if self.metrics is not None:
            self.opened.lock.check()
            self.metrics.write(self.step, metrics, kind=kind)
            self.trackers.metrics(self.step, metrics, kind)

    def save(self, evaluated: dict[str, float] | None = None) -> None:
        """Save a checkpoint; ``evaluated``: held-out metrics of this very step, which rank it."""
        host = {
            "verb": self.verb,
            "step": self.step,
            "before": self.before,
            "after": self.after,
            "ledger": self.ledger.state_dict(),
            "identity": self.opened.identity,
        } | self.state()
        check_weights(self.learner)
        self.opened.lock.check()
        self.checkpoints.save(self.step, self.learner.arrays(), host, evaluated)

    def finish(self, output: str = "", **amounts: int) -> None:
        """Evaluate, save, and write the model and the summary (with ``amounts``).

        ``output``: the Hugging Face directory to write; empty: ``model/`` in the run directory.
        """
        if self.config.evaluation.end:
            self.after = self.after or self.evaluate()
        self.save(self.after)
        directory = Path(output).expanduser() if output else self.run_dir.path / "model"
        weights = self.session.processes.whole_on_first(self.learner.programs.whole(self.learner.params))
        if not self.first:
            return
        save_model(self.session, weights, directory)
        summary = {
            "recipe": self.config.name,
            "algorithm": self.verb,
            "seed": self.config.seed,
            "updates": self.step,
            "sampled_tokens": self.ledger.sampled_tokens,
            "loss_tokens": self.ledger.loss_tokens,
            "trained_positions": self.ledger.trained_positions,
            "cpu_seconds": self.ledger.cpu_seconds,
            "wall_seconds": self.ledger.wall_seconds,
        }
        write_json_atomic(self.run_dir.summary, summary | amounts | {"before": self.before, "after": self.after})
        self.console.summary(self.before, self.after, self.run_dir)
        self.console.note(f"model: {directory} (use it with model.path={directory})")
        self.status.end("finished")


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
        code = kind(opened, ledger).start()
    return code or int(opened.mirror.has_failed)
