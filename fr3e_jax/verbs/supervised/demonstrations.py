"""Supervised warm start: cross-entropy on a task's demonstrations, with the policy and checkpoints of training."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fr3e_jax.cluster.membership import across_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.size_buckets import size_bucket
from fr3e_jax.runs.console import say
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.runs.signals import Stopped
from fr3e_jax.session.opening import OpenedRun
from fr3e_jax.session.session import open_session
from fr3e_jax.stores.reading import Place
from fr3e_jax.verbs.model_directory import check_replaceable
from fr3e_jax.verbs.supervised.supervised_run import SupervisedRun, start_run

WARMUP_UPDATES = 20
LOG_EVERY = 50  # optimizer steps between two lines of metrics


@across_processes
def sft(config: Config, run_dir: Place | None = None, resume: bool = False) -> int:
    """``fr3e sft``: fine-tune and return the exit code.

    At the end the model is written as a Hugging Face directory that ``model.path`` can name.
    """
    if run_dir is not None:
        config.runtime.run_dir = str(run_dir)
    if config.sft.start == "random":
        if config.model.lora.rank or config.model.lora.path:
            raise ConfigError(
                "sft.start=random starts from random weights, which adapters (model.lora.rank) would leave as they "
                "are; set sft.start=model, or leave model.lora out"
            )
        config.model.path = ""  # saved so: the run's config.yaml then holds the sizes of the network
    ledger = TokenLedger()
    say("opening the model and its data", config.runtime.console)
    session = open_session(_supervised(config))
    with as_config_error():
        if config.sft.output:
            check_replaceable(config.sft.output)  # now, not after hours of training
        session.task.demonstration(0, 1.0)  # a task without demonstrations fails before a run directory exists
    return start_run(DemonstrationRun, session, config, run_dir, resume, ledger)


def _supervised(config: Config) -> Config:
    """The same settings with the optimizer of ``sft``."""
    optimizer = dataclasses.replace(
        config.optimizer,
        learning_rate=config.sft.learning_rate,
        warmup_updates=WARMUP_UPDATES,
        schedule="cosine",
        decay_updates=config.sft.steps,
    )
    return dataclasses.replace(config, optimizer=optimizer)


class DemonstrationRun(SupervisedRun):
    verb, rate, on_demonstrations = "sft", "sft.learning_rate", True

    def __init__(self, opened: OpenedRun, ledger: TokenLedger):
        self.dropped_too_long = self.dropped_unspeakable = 0
        super().__init__(opened, ledger, max_steps=opened.config.sft.steps)
        self.longest = (self.config.data.max_prompt_tokens, self.config.rollout.max_response_tokens)

    def state(self) -> dict[str, Any]:
        return {"dropped_too_long": self.dropped_too_long, "dropped_unspeakable": self.dropped_unspeakable}

    def restore(self, host: dict[str, Any]) -> None:
        self.dropped_too_long = host["dropped_too_long"]
        self.dropped_unspeakable = host["dropped_unspeakable"]

    def run(self) -> int:
        config, s = self.config, self.config.sft
        self.before = self.before or self.evaluate_start()
        self.console.stage("supervised fine-tuning")
        while self.step < s.steps:
            updated = self.fine_tune(self._batch(self.step), **self._packing())
            if self.step % LOG_EVERY == 0 or self.step == s.steps:
                metrics = updated() | {
                    "data/dropped_too_long": self.dropped_too_long,
                    "data/dropped_unspeakable": self.dropped_unspeakable,
                }
                metrics |= self.ledger.step_metrics()
                self.write(metrics)
                self.console.step(self.step, metrics)
                self.console.note(f"step {self.step}: loss {metrics['loss/supervised']:.4f}")
                self.check_finite(metrics)
            due = self.step % (config.checkpoint.every * LOG_EVERY) == 0 and self.step < s.steps
            if due:
                self.check_finite(updated())
                self.save()
            try:
                self.stop.check()
            except Stopped:
                self.check_finite(updated())
                raise
        self.finish(s.output)
        return 0

    def _packing(self) -> dict[str, Any]:
        """Options of `pack` for micro-batches of the same shape at every step."""
        shards = self.learner.programs.shards
        trunk, capacity = (size_bucket(longest) for longest in self.longest)
        fitting = max(self.config.training.micro_batch_tokens // (trunk + capacity), 1)
        rows = -(-min(fitting, self.config.sft.batch_size) // shards) * shards
        return {"shapes": [RowShape(rows, trunk, 1, capacity)]}

    def _batch(self, step: int) -> list[TrainingTrunk]:
        """Demonstrations ``step * batch_size ...`` of the task, each a trunk (prompt) with one branch (response).

        Those longer than ``data.max_prompt_tokens`` or ``rollout.max_response_tokens`` are left out and counted, and so
        are those that cannot be encoded.
        """
        s, codec = self.config.sft, self.session.texts.codec
        fraction = min(step / s.curriculum_steps, 1.0) if s.curriculum_steps else 1.0
        trunks: list[TrainingTrunk] = []
        complaints: list[str] = []
        for index in range(step * s.batch_size, (step + 1) * s.batch_size):
            demonstration = self.session.task.demonstration(index, fraction)
            try:
                prompt = self.session.texts.prompt_ids(demonstration.prompt)
                response = self.session.texts.encode(demonstration.response)
            except ValueError as error:
                self.dropped_unspeakable += 1
                complaints.append(f"demonstration {index} is dropped: {error}")
                self.console.note(complaints[-1])
                continue
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
                + (f" ({len(complaints)} cannot be encoded: {complaints[0]})" if complaints else "")
            )
        return trunks
