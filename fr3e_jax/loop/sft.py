"""Supervised warm start: cross-entropy on a task's demonstrations, with the policy and checkpoints of training."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np

from fr3e_jax.configuration import ConfigError, save_config
from fr3e_jax.configuration.schema import Config
from fr3e_jax.loop.checkpoints import Checkpointer
from fr3e_jax.loop.console import Console
from fr3e_jax.loop.evaluate import best_metric, evaluate
from fr3e_jax.loop.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.loop.export import save_model
from fr3e_jax.loop.ledger import TokenLedger
from fr3e_jax.loop.membership import across_processes
from fr3e_jax.loop.metrics import MetricsWriter
from fr3e_jax.loop.mini_batches import Learner
from fr3e_jax.loop.model_directory import check_replaceable
from fr3e_jax.loop.packing import pack
from fr3e_jax.loop.run_directory import RunDirectory, open_run, write_json_atomic
from fr3e_jax.loop.session import Session, open_session, settings_at_fault
from fr3e_jax.loop.signals import StopRequest
from fr3e_jax.programs.decoder import size_bucket


@across_processes
def sft(config: Config, run_dir: Path | None = None, resume: bool = False) -> int:
    """``fr3e sft``: returns the exit code; writes a Hugging Face directory that ``model.path`` can name."""
    if run_dir is not None:
        config.runtime.run_dir = str(run_dir)
    if config.sft.start == "random":
        config.model.path = ""  # saved like that: the shape of the network is then in the run's own config.yaml
    ledger = TokenLedger()
    session = open_session(_supervised(config))
    with settings_at_fault():
        if config.sft.output:
            check_replaceable(config.sft.output)  # now, not after hours of training
        session.task.demonstration(0, 1.0)  # that there are none is told before there is a run directory
    run = RunDirectory(session.processes.on_first(partial(open_run, config, run_dir, resume, "sft")))
    keep = {"keep_last": config.checkpoint.keep_last, "keep_best": config.checkpoint.keep_best}
    with session.grader, Checkpointer(run.checkpoints, **keep, best_metric=best_metric(config)) as checkpoints:
        supervised = _Run(session, run, checkpoints, ledger)
        if resume and session.processes.first:  # only now: misfits must not replace the settings that fit
            save_config(config, run.path, verb="sft")
        return supervised.run()


def _non_finite_message(step: int, metrics: dict[str, float]) -> str:
    return (
        f"at step {step} the loss is {metrics['loss/supervised']} and the gradient norm "
        f"{metrics['gradient_norm/mean']}; expected finite numbers. The last checkpoint is intact: lower "
        "sft.learning_rate, or set model.compute_dtype=float32, and --resume"
    )


def _supervised(config: Config) -> Config:
    """The same settings with the optimizer of ``sft``."""
    optimizer = dataclasses.replace(
        config.optimizer,
        learning_rate=config.sft.learning_rate,
        warmup_updates=config.sft.warmup_updates,
        schedule="cosine",
        decay_updates=config.sft.steps,
    )
    return dataclasses.replace(config, optimizer=optimizer)


class _Run:
    def __init__(self, session: Session, run: RunDirectory, checkpoints: Checkpointer, ledger: TokenLedger):
        self.session, self.config, self.run_dir = session, session.config, run
        self.checkpoints, self.ledger, self.step = checkpoints, ledger, 0
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}  # of a finished run
        self.dropped_too_long = 0
        self.longest = (self.config.data.max_prompt_tokens, self.config.rollout.max_response_tokens)
        programs = session.train_programs(supervised=True)
        latest = checkpoints.latest_step()
        if latest is None:
            params = session.fresh_params()
            self.learner = Learner(programs, params, programs.init_optimizer(params))
        else:
            with settings_at_fault():
                arrays, host = checkpoints.restore(latest, programs.abstract_arrays())
            self.learner = Learner(programs, arrays["params"], arrays["optimizer"], host["step"])
            self.step, self.before, self.after = host["step"], host["before"], host["after"]
            self.dropped_too_long = host["dropped_too_long"]
            ledger.load_state_dict(host["ledger"])
        self.metrics = contextlib.nullcontext()  # one process writes
        if session.processes.first:
            self.metrics = MetricsWriter(run, tensorboard=self.config.runtime.tensorboard, resume_step=latest)
        shown = self.config.runtime.console if session.processes.first else "none"
        self.console = Console(shown, max_steps=self.config.sft.steps, first_step=self.step)

    def run(self) -> int:
        config, s = self.config, self.config.sft
        with self.metrics, self.console, StopRequest() as stop:
            self.before = self.before or self._evaluate()
            self.console.stage("supervised fine-tuning")
            while self.step < s.steps:
                metrics = self._update()
                if self.step % s.log_every == 0 or self.step == s.steps:
                    metrics |= self.ledger.step_metrics()
                    self._write(metrics)
                    self.console.step(self.step, metrics)
                    self.console.note(f"step {self.step}: loss {metrics['loss/supervised']:.4f}")
                    if not math.isfinite(metrics["gradient_norm/mean"]):  # looked at before every checkpoint
                        print(f"fr3e: stopped: {_non_finite_message(self.step, metrics)}", file=sys.stderr)
                        return 1
                due = self.step % (config.checkpoint.every * s.log_every) == 0 and self.step < s.steps
                asked = self.session.processes.asked_to_stop(stop.received, self.step)
                if asked or due:
                    self._save()
                if asked:
                    self.console.note(f"{asked}: step {self.step} is saved; continue with --resume")
                    return 0
            self._finish()
        return 0

    def _batch(self, step: int) -> list[TrainingTrunk]:
        """Demonstrations ``step * batch_size ...`` of the task, each a trunk (prompt) with one branch (response).

        Longer ones than ``data.max_prompt_tokens`` and ``rollout.max_response_tokens`` are left out and counted.
        """
        s, codec = self.config.sft, self.session.codec
        fraction = min(step / s.curriculum_steps, 1.0) if s.curriculum_steps else 1.0
        trunks = []
        for index in range(step * s.batch_size, (step + 1) * s.batch_size):
            demonstration = self.session.task.demonstration(index, fraction)
            with settings_at_fault():
                prompt = self.session.prompt_ids(demonstration.prompt)
                response = self.session.encode(demonstration.response)
            response = np.append(response, codec.stop_ids[0]).astype(np.int32)
            if len(prompt) > self.longest[0] or len(response) > self.longest[1]:
                self.dropped_too_long += 1
                continue
            nothing = np.zeros(len(response), np.float32)
            trunks.append(TrainingTrunk(prompt, [TrainingBranch(len(prompt), response, nothing, nothing)], step))
        if not trunks:
            raise ConfigError(
                f"all {s.batch_size} demonstrations of step {step + 1} are longer than data.max_prompt_tokens="
                f"{self.longest[0]} or rollout.max_response_tokens={self.longest[1]}; raise them"
            )
        return trunks

    def _update(self) -> dict[str, float]:
        learner, trunks = self.learner, self._batch(self.step)
        shards, s = learner.programs.shards, self.config.sft
        rows = -(-(s.micro_batch_size or s.batch_size) // shards) * shards
        tokens = sum(len(trunk.branches[0].token_ids) for trunk in trunks)
        gradients = learner.programs.zero_gradients(learner.params)
        parts = []
        with self.ledger.stage("update"):
            sizes = (size_bucket(self.longest[0]), size_bucket(self.longest[1]))  # the same at every step
            options = {"tokens": rows * sum(sizes), "shards": shards, "sizes": sizes}
            for micro in pack(trunks, pad_id=self.session.codec.pad_id, **options):
                gradients, part = learner.programs.accumulate(learner.params, gradients, micro.batch, tokens, 1.0)
                parts.append(part)
                self.ledger.trained_positions += micro.positions
                self.ledger.padded_positions += micro.padded_positions
            learner.params, learner.optimizer_state, norm = learner.programs.apply(
                learner.params, learner.optimizer_state, gradients
            )
        self.ledger.loss_tokens += tokens
        self.step, self.after = self.step + 1, {}
        learner.updates = self.step
        if self.step % self.config.sft.log_every and self.step != self.config.sft.steps:
            return {}
        parts = jax.device_get(parts)
        return {
            "loss/supervised": sum(float(part["loss"]) for part in parts),
            "entropy/mean": sum(float(part["entropy"]) for part in parts) / tokens,
            "gradient_norm/mean": float(norm),
            "data/dropped_too_long": self.dropped_too_long,
        }

    def _evaluate(self) -> dict[str, float]:
        self.console.stage("evaluating")
        with self.ledger.stage("evaluate"):
            result = evaluate(self.session, self.learner.params)
        self.session.rollout_weights.release()
        self._write(result, kind="eval")
        return result

    def _write(self, metrics: dict[str, float], kind: str = "train") -> None:
        if self.session.processes.first:
            self.metrics.write(self.step, metrics, kind=kind)

    def _save(self) -> None:
        host = {
            "verb": "sft",
            "step": self.step,
            "before": self.before,
            "after": self.after,
            "dropped_too_long": self.dropped_too_long,
            "ledger": self.ledger.state_dict(),
        }
        self.checkpoints.save(self.step, self.learner.arrays(), host, self.after)

    def _finish(self) -> None:
        after = self.after = self.after or self._evaluate()
        self._save()
        output = Path(self.config.sft.output).expanduser() if self.config.sft.output else self.run_dir.path / "model"
        weights = self.session.processes.whole_on_first(self.learner.params)
        if not self.session.processes.first:
            return
        save_model(self.session, weights, output, self.config.sft.output_dtype)
        summary = {
            "recipe": self.config.name,
            "algorithm": "sft",
            "seed": self.config.seed,
            "updates": self.step,
            "sampled_tokens": 0,
            "loss_tokens": self.ledger.loss_tokens,
            "trained_positions": self.ledger.trained_positions,
            "cpu_seconds": self.ledger.cpu_seconds,
            "wall_seconds": self.ledger.wall_seconds,
            "before": self.before,
            "after": after,
        }
        write_json_atomic(self.run_dir.summary, summary)
        self.console.summary(self.before, after, self.run_dir)
        self.console.note(f"model: {output} (use it with model.path={output})")
