"""Supervised warm start: cross-entropy on a task's demonstrations, with the policy and checkpoints of training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from fr3e_jax.cluster.membership import across_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.micro_batch_shapes import chosen_shapes
from fr3e_jax.loop.state import Progress
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.runs.console import say
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.opening import OpenedRun
from fr3e_jax.session.session import Session, open_session
from fr3e_jax.stores.reading import Place
from fr3e_jax.verbs.model_directory import check_replaceable
from fr3e_jax.verbs.supervised.supervised_run import SupervisedRun, start_run

WARMUP_UPDATES = 20
EXPECTED = 256  # demonstrations whose lengths choose the shape of rows; at least those of a step


def steps_per_line(steps: int) -> int:
    """Optimizer steps between two lines of metrics: at most 100 a run, as steps take milliseconds or minutes."""
    return -(-steps // 100)


@across_processes
def sft(config: Config, run_dir: Place | None = None, resume: bool = False) -> int:
    """``fr3e sft``: fine-tune and return the exit code.

    At the end the model is written as a Hugging Face directory that ``model.path`` can name.
    """
    if run_dir is not None:
        runtime = dataclasses.replace(config.runtime, run_dir=str(run_dir))
        config = dataclasses.replace(config, runtime=runtime)  # the caller's stays
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
        decay_updates=config.sft.steps,
    )
    return dataclasses.replace(config, optimizer=optimizer)


@dataclass(kw_only=True)
class DemonstrationState(Progress):
    """The state of a run on demonstrations, with the number of those that it could not use."""

    dropped_too_long: int = 0
    dropped_unspeakable: int = 0

    def host_state(self, opened: OpenedRun) -> dict[str, Any]:
        return super().host_state(opened) | {f"data/{name}": value for name, value in self.dropped().items()}

    def load_host_state(self, host: dict[str, Any]) -> None:
        super().load_host_state(host)
        vars(self).update({name: host[f"data/{name}"] for name in self.dropped()})

    def dropped(self) -> dict[str, int]:
        """The counts by their names."""
        return {name: getattr(self, name) for name in ("dropped_too_long", "dropped_unspeakable")}


class DemonstrationRun(SupervisedRun):
    verb, rate, on_demonstrations = "sft", "sft.learning_rate", True
    state: DemonstrationState

    @staticmethod
    def fresh_state(session: Session, learner: Learner, ledger: TokenLedger) -> DemonstrationState:
        return DemonstrationState(learner=learner, ledger=ledger)

    @staticmethod
    def limits(config: Config, state: DemonstrationState) -> dict[str, int]:
        return {"max_steps": config.sft.steps, "first_step": state.step}

    def train(self) -> None:
        config, s, state = self.config, self.config.sft, self.state
        self.longest = (config.data.max_prompt_tokens, config.rollout.max_response_tokens)
        self.evaluate_start()
        self.console.stage("supervised fine-tuning")
        spacing, key_cost = steps_per_line(s.steps), self.session.model.architecture.key_cost
        shapes = self._shapes(key_cost)
        while state.step < s.steps:
            updated = self.fine_tune(self._batch(state.step), shapes=shapes, key_cost=key_cost)
            if state.step % spacing == 0 or state.step == s.steps:
                metrics = updated() | {f"data/{name}": count for name, count in state.dropped().items()}
                metrics |= state.ledger.step_metrics()
                self.records.metrics(state.step, metrics)
                self.console.step(state.step, metrics)
                self.check_finite(metrics)
                if state.step < s.steps and self.save_due(state.step // spacing):
                    self.save()
            self.stop.check()
        self.finish()

    def export(self, output: str = "") -> None:
        super().export(self.config.sft.output)

    def _shapes(self, key_cost: float) -> tuple[RowShape, ...]:
        """The shapes of micro-batches for demonstrations of the task's lengths: of one row, and of as many as fit.

        They follow from the recipe and the task alone, so a resumed run has the same.
        """
        s, longest = self.config.sft, self.longest
        steps = np.linspace(0, s.steps - 1, min(max(EXPECTED // s.batch_size, 1), s.steps)).astype(int)
        batches = [self._demonstrations(int(step))[0] for step in steps]
        sizes = [([[len(p)] for p, _ in batch], [[len(r)] for _, r in batch]) for batch in batches if batch]
        tokens, shards = self.config.training.micro_batch_tokens, self.state.learner.programs.shards
        options = {"tokens": tokens, "most_shapes": 2, "shards": shards, "key_cost": key_cost}
        return chosen_shapes(sizes or [tuple([[size]] for size in longest)], longest, **options)

    def _batch(self, step: int) -> list[TrainingTrunk]:
        """The demonstrations of a step, each a trunk (prompt) with one branch (response); counts those left out."""
        usable, too_long, complaints = self._demonstrations(step)
        self.state.dropped_too_long += too_long
        self.state.dropped_unspeakable += len(complaints)
        for complaint in complaints:
            self.console.note(complaint)
        if not usable:
            raise ConfigError(
                f"all {self.config.sft.batch_size} demonstrations of step {step + 1} are longer than "
                f"data.max_prompt_tokens={self.longest[0]} or rollout.max_response_tokens={self.longest[1]}; raise them"
                + (f" ({len(complaints)} cannot be encoded: {complaints[0]})" if complaints else "")
            )
        nothing = [np.zeros(len(response), np.float32) for _, response in usable]
        return [
            TrainingTrunk(prompt, [TrainingBranch(len(prompt), response, zeros, zeros)], step)
            for (prompt, response), zeros in zip(usable, nothing, strict=True)
        ]

    def _demonstrations(self, step: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], int, list[str]]:
        """Demonstrations ``step * batch_size ...`` of the task.

        Returns:
          Tokens of prompt and response of each, without those longer than ``data.max_prompt_tokens`` or
          ``rollout.max_response_tokens``; the number of these; and a complaint for each that cannot be encoded.
        """
        s, codec = self.config.sft, self.session.texts.codec
        fraction = min(step / s.curriculum_steps, 1.0) if s.curriculum_steps else 1.0
        usable, too_long, complaints = [], 0, []
        for index in range(step * s.batch_size, (step + 1) * s.batch_size):
            demonstration = self.session.task.demonstration(index, fraction)
            try:
                prompt = self.session.texts.prompt_ids(demonstration.prompt)
                response = self.session.texts.encode(demonstration.response)
            except ValueError as error:
                complaints.append(f"demonstration {index} is dropped: {error}")
                continue
            response = np.append(response, codec.stop_ids[0]).astype(np.int32)
            if len(prompt) > self.longest[0] or len(response) > self.longest[1]:
                too_long += 1
                continue
            usable.append((prompt, response))
        return usable, too_long, complaints
