"""Rejection-sampling fine-tuning: sample, filter, select, fine-tune, and again. (Deng et al. 2025, 4.4.1.)

Each iteration samples from the weights of the last one, and fine-tunes them with a fresh optimizer.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fr3e_jax.cluster.membership import across_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import split_mini_batches
from fr3e_jax.loop.collection import NoSignal
from fr3e_jax.loop.state import Progress
from fr3e_jax.loop.step_report import grading_metrics
from fr3e_jax.rollouts.noise import SHUFFLE
from fr3e_jax.runs.console import say
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.runs.signals import Stopped
from fr3e_jax.session.opening import OpenedRun
from fr3e_jax.session.session import Session, open_session
from fr3e_jax.stores.reading import Place
from fr3e_jax.verbs.supervised.rft_responses import response_entries, sample_responses
from fr3e_jax.verbs.supervised.rft_selection import select_responses, training_trunks
from fr3e_jax.verbs.supervised.supervised_run import SupervisedRun, start_run


@across_processes
def rft(config: Config, run_dir: Place | None = None, resume: bool = False) -> int:
    """``fr3e rft``: run the iterations and return the exit code.

    At the end the model is written as a Hugging Face directory that ``model.path`` can name.

    Raises:
      ConfigError: the policy acts in an environment.
    """
    if config.environment.enabled:
        raise ConfigError(
            f"environment.kind={config.environment.kind}: fr3e rft filters and cuts answers that a verifier grades, "
            "and an episode has neither an answer nor a verifier; train with fr3e train, or set environment.kind=none"
        )
    if run_dir is not None:
        runtime = dataclasses.replace(config.runtime, run_dir=str(run_dir))
        config = dataclasses.replace(config, runtime=runtime)  # the caller's stays
    ledger = TokenLedger()
    say("opening the model, its data and the verifier", config.runtime.console)
    session = open_session(config)
    return start_run(RejectionSamplingRun, session, config, run_dir, resume, ledger)


@dataclass
class Iteration:
    """The trunks of an iteration and its progress; part of a checkpoint."""

    trunks: list[TrainingTrunk]
    metrics: dict[str, float]  # of sampling and selection
    updates: int = 0  # optimizer steps of this iteration so far
    sums: Counter[str] = field(default_factory=Counter)  # of the metrics of these steps

    def to_json(self) -> dict[str, Any]:
        """JSON content for a checkpoint."""
        return dataclasses.asdict(self) | {"trunks": [t.to_json() for t in self.trunks], "sums": dict(self.sums)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Iteration:
        """The iteration that `to_json` described."""
        trunks = [TrainingTrunk.from_json(trunk) for trunk in content["trunks"]]
        return cls(trunks, content["metrics"], content["updates"], Counter(content["sums"]))


@dataclass(kw_only=True)
class RejectionSamplingState(Progress):
    """The state of a run between two updates; ``step`` counts these."""

    feed: PromptStream
    iteration: int = 0  # finished iterations
    current: Iteration | None = None

    def host_state(self, opened: OpenedRun) -> dict[str, Any]:
        current = None if self.current is None else self.current.to_json()
        progress = {"iteration": self.iteration, "current": current, "stream": self.feed.state_dict()}
        return super().host_state(opened) | progress

    def load_host_state(self, host: dict[str, Any]) -> None:
        super().load_host_state(host)
        self.iteration = host["iteration"]
        self.current = None if host["current"] is None else Iteration.from_json(host["current"])
        self.feed.load_state_dict(host["stream"])


class RejectionSamplingRun(SupervisedRun):
    verb, rate = "rft", "optimizer.learning_rate"
    state: RejectionSamplingState

    @staticmethod
    def fresh_state(session: Session, learner: Learner, ledger: TokenLedger) -> RejectionSamplingState:
        feed = session.prompt_stream()
        return RejectionSamplingState(learner=learner, ledger=ledger, feed=feed)

    @staticmethod
    def limits(config: Config, state: RejectionSamplingState) -> dict[str, int]:
        return {"max_steps": config.rft.iterations, "first_step": state.iteration}

    def train(self) -> None:
        state = self.state
        self.evaluate_start()
        if state.step and state.current is None and self._evaluation_due():
            state.evaluated = state.evaluated or self.evaluate()  # a signal had interrupted it
            self.opened.checkpoints.rank(state.step, state.evaluated)
        while state.iteration < self.config.rft.iterations:
            state.current = state.current or self._gather()
            self._fine_tune(state.current)
        self.finish(iterations=state.iteration)

    def _fine_tune(self, current: Iteration) -> None:
        """Train on the rest of an iteration.

        Raises:
          Stopped: between two updates; the iteration goes on after them.
        """
        self.console.stage(f"fine-tuning, iteration {self.state.iteration + 1}")
        batches = self._batches(current)
        for left, batch in zip(reversed(range(len(batches))), batches, strict=True):
            updated = self.fine_tune(batch, shapes=self.session.shapes.rows)()
            self.check_finite(updated)
            current.updates += 1
            current.sums.update(updated)
            if left and self.save_due(current.updates):
                self.save()
            if left:
                self.stop.check()
        self._end_iteration(current)
        if self.state.iteration < self.config.rft.iterations:
            self.stop.check()

    def _gather(self) -> Iteration:
        """Sample, filter and select the responses that this iteration trains on.

        Raises:
          Stopped: while they are sampled; the prompts are those before the iteration again.
          NoSignal: none was selected.
        """
        session, state, learner = self.session, self.state, self.state.learner
        self.console.stage(f"sampling, iteration {state.iteration + 1}")
        with state.ledger.stage("sample"):
            before = state.feed.state_dict()
            with as_config_error():
                prompts = state.feed.take(self.config.rft.prompts)
            for line in state.feed.complaints:
                self.console.note(line)
            weights = session.sampler.weights.of(learner.params)
            try:
                responses = sample_responses(session, weights, state.iteration, prompts)
            except Stopped:
                state.feed.load_state_dict(before)
                raise
            state.ledger.count_decoding(session.sampler.engine.take_counts())
            session.sampler.weights.release()
        with state.ledger.stage("select"):
            selected, metrics = select_responses(session.learning, learner, state.iteration, responses)
        session.processes.agree(
            f"iteration {state.iteration + 1}, selection",
            prompts=[[r.prompt.position, r.response_index] for r in selected],
            token_ids=[r.rollout.token_ids for r in selected],
        )
        with state.ledger.stage("store"):  # under the number of the first update on the responses
            self.records.store(state.step + 1, response_entries(state.step + 1, responses, selected))
        if not selected:
            raise NoSignal(f"iteration {state.iteration + 1}: {self._nothing(metrics)}")
        metrics |= grading_metrics(session.grader) | state.feed.metrics()
        if session.sampler.toolbox is not None:
            metrics |= session.sampler.toolbox.metrics([response.rollout for response in responses])
        learner.restart_optimizer()
        return Iteration(training_trunks(selected, state.iteration)[0], metrics)

    def _batches(self, current: Iteration) -> list[list[TrainingTrunk]]:
        """The mini-batches that have not been trained on yet."""
        order = self.session.noise.generator(SHUFFLE, self.state.iteration, 0).permutation(len(current.trunks))
        members = [(int(n), current.trunks[n]) for n in order]
        batches = split_mini_batches(members, self.config.training.mini_batch_rollouts)
        return [[trunk for _, trunk in batch] for batch in batches][current.updates :]

    def _end_iteration(self, current: Iteration) -> None:
        state = self.state
        state.current = None
        state.iteration += 1
        means = {name: total / current.updates for name, total in current.sums.items()}
        metrics = {"iteration": state.iteration, "updates": current.updates} | means | current.metrics
        metrics |= state.ledger.step_metrics()
        self.records.metrics(state.step, metrics)
        self.console.step(state.iteration, metrics)
        if state.iteration == self.config.rft.iterations:
            return  # `finish` saves after the last evaluation, whose metrics rank the checkpoint
        if self._evaluation_due():
            state.evaluated = self.evaluate()
        self.save()

    def _evaluation_due(self) -> bool:
        every, iteration = self.config.evaluation.every, self.state.iteration
        return bool(every) and iteration % every == 0 and iteration < self.config.rft.iterations

    def _nothing(self, m: dict[str, float]) -> str:
        rft = self.config.rft
        return (
            f"of {m['rft/sampled']} responses {m['rft/right']} were right and {m['rft/usable_right']} of them passed "
            f"the filters ({m['rft/dropped_redundant']} were redundant, {m['rft/dropped_no_answer']} had no answer or "
            f"verdict, {m['rft/dropped_no_digit']} no digit, {m['rft/dropped_unfinished']} were unfinished); expected "
            f"at least one: raise rft.prompts (now {rft.prompts}), rft.max_redundancy (now {rft.max_redundancy:g}) or "
            "rollout.max_response_tokens, or warm the policy up with fr3e sft"
        )
