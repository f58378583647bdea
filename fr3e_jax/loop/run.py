"""A run that goes on: when it evaluates, saves and stops, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from fr3e_jax.cluster.membership import farewell, last_words
from fr3e_jax.cluster.processes import Divergence
from fr3e_jax.configuration.sampler_rules import uncorrected
from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.finiteness import check_weights
from fr3e_jax.loop.callbacks import Callback, CallbackAnswer, Callbacks
from fr3e_jax.loop.collection import Batch, NoSignal
from fr3e_jax.loop.evaluate import evaluate
from fr3e_jax.loop.records import Records
from fr3e_jax.loop.run_report import NON_FINITE, compilation_line, non_finite_message, run_summary
from fr3e_jax.loop.state import Progress, TrainingState, open_state
from fr3e_jax.loop.step_report import batch_metrics, entropies_of, moments, rollout_metrics, token_metrics
from fr3e_jax.rewards.pool import usable_cores
from fr3e_jax.runs.background import Background, WriteFailed
from fr3e_jax.runs.checkpoint_content import CheckpointFailed
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.runs.console import Console
from fr3e_jax.runs.declared_metrics import is_score
from fr3e_jax.runs.ledger import TokenLedger, cpu_seconds_of_process
from fr3e_jax.runs.profile import Profiler
from fr3e_jax.runs.run_directory import write_json_atomic
from fr3e_jax.runs.run_lock import RunDirectoryGone
from fr3e_jax.runs.run_state import StatusFile
from fr3e_jax.runs.signals import Stopped, StopRequest
from fr3e_jax.session.checkpoint_changes import missing_records
from fr3e_jax.session.declared_programs import compiled_ahead
from fr3e_jax.session.grading import GradingFailed
from fr3e_jax.session.opening import OpenedRun, Restored

FAILURES = (NoSignal, WriteFailed, CheckpointFailed, RunDirectoryGone, GradingFailed, Divergence)
"""Errors that end a run in one line; its newest checkpoint is whole."""


class OngoingRun:
    """A run from its opening to its end; a subclass says how it trains.

    Args:
      opened: its session, directory and checkpoints.
      state: of the run, fresh or restored.
      restored: the checkpoint that it goes on from; None: the run is fresh.
      callbacks: are told what happens, on the first process.
      limits: of the display, for `Console`.
    """

    rate = "optimizer.learning_rate"  # name of the setting, for messages

    def __init__(
        self,
        opened: OpenedRun,
        state: Progress,
        restored: Restored | None,
        callbacks: Sequence[Callback] = (),
        **limits: int,
    ):
        self.opened, self.session, self.config, self.state = opened, opened.session, opened.session.config, state
        processes, runtime = self.session.processes, self.config.runtime
        self.stop = StopRequest(processes.asked_to_stop)
        self.session.sampler.engine.stop_here = self.stop.check
        opened.mirror.is_stopping = self.stop.is_asked
        self.background = Background(processes.gather if processes.count > 1 else None)
        self.records = Records(opened, self.background)
        self.changes = restored.changes if restored else []
        self.changes += self.records.go_on_after(restored.step if restored else None, state)
        self.callbacks = Callbacks(callbacks if processes.first else ())
        self.status = StatusFile(opened.directory, writes=processes.first)
        self.console = Console(runtime.console if processes.first else "none", compiled=compilations, **limits)
        self.session.sampler.report = self.console.progress
        self.profiler = Profiler(runtime.profile_steps * processes.first, opened.directory, state.ledger)
        self.saved_at = time.monotonic()  # or, before the first checkpoint, when the run began
        self.last_metrics: dict[str, Any] = {}  # of the last finished step
        self.last_finished: dict[str, Any] | None = None  # the host's state of that step, while another is taken

    # -- from the start to the end ----------------------------------------------------------------------------------

    def carry_out(self, train: Callable[[Self], None]) -> int:
        """Call ``train(self)``, say how the run ended, and return the exit code."""
        with self.status:
            try:
                with self.console, self.background, self.stop, self.compiled_ahead():
                    self.announce()
                    try:
                        train(self)
                        self.status.end("finished")
                    except Stopped as reason:
                        self.console.note(f"{reason}: {self._save_last_finished()}; {self.opened.way_on}")
                        self.status.end("stopped", str(reason))
                    except NoSignal:
                        self._save_last_finished()
                        raise
            except FAILURES as error:
                self._fail(str(error))
            except NON_FINITE as error:  # these weights must not be saved
                newest, updates = self.opened.checkpoints.latest_step(), self.state.learner.updates
                way_on = self.opened.way_on
                last = self.last_metrics
                self._fail(non_finite_message(self.config, error, last, updates, newest, way_on, self.rate))
        for line in self.profiler.report():
            print(line)
        failed = self.status.ending.state == "failed"
        self.callbacks.on_end(self.status.ending.state, self.status.ending.reason)
        self.records.finish(failed)
        return int(failed)

    def _fail(self, message: str) -> None:
        step = self.state.step
        print(f"fr3e: stopped at step {step}: {message}", file=sys.stderr)
        self.status.end("failed", f"step {step}: {message}")

    def compiled_ahead(self) -> contextlib.AbstractContextManager:
        """A block in which threads may compile programs before the run calls them."""
        return contextlib.nullcontext()

    def announce(self) -> None:
        """Compare the processes' settings, and say what the run goes on from and what has changed."""
        state, processes, way_on = self.state, self.session.processes, self.opened.way_on
        if processes.count > 1:
            processes.agree(f"step {state.step + 1}, start", settings=_shared(self.config), progress=state.step)
            member = f"process {processes.index} of {processes.count}"
            last_words.set(farewell(member, way_on.replace("continue", "continue from the last checkpoint", 1)))
        self.callbacks.on_start(self.opened.directory.path, state.step)
        if state.step:
            self.console.note(f"resumed from the checkpoint of step {state.step}")
        for line in self.changes if processes.first else ():
            print(f"fr3e: {line}", file=sys.stderr)

    def evaluate(self, stage: str = "evaluating") -> dict[str, float]:
        """Evaluate the weights, record it, and return the held-out metrics.

        Raises:
          Stopped: before a chunk of decode steps; a resumed run begins with this evaluation.
        """
        state = self.state
        self.console.stage(stage)
        with state.ledger.stage("evaluate"):
            evaluation = evaluate(self.session, state.learner.params, self.console.note)
        shares = [f"{name} {value:.1%}" for name, value in evaluation.metrics.items() if is_score(name)]
        self.console.note(f"held-out after step {state.step}: {'  '.join(shares)}")
        answer = CallbackAnswer({}, stop=False)
        try:
            answer = self.callbacks.on_evaluation(state.step, evaluation.metrics)
        finally:
            self.records.evaluation(state.step, evaluation, answer.metrics)
        if answer.stop:
            self.stop.ask("a callback")
        return evaluation.metrics

    def evaluate_start(self) -> None:
        """Evaluate the weights that the run starts from, if that is asked for and not done."""
        state = self.state
        if self.config.evaluation.start and not state.step:
            state.before = state.before or self.evaluate("evaluating the start")

    def save_due(self, steps: int) -> bool:
        """Return True if the state after ``steps`` is to be saved, by `checkpoint.every` or `checkpoint.minutes`."""
        checkpoint = self.config.checkpoint
        if steps % checkpoint.every == 0:
            return True
        if not checkpoint.minutes:
            return False
        seconds = self.session.processes.on_first(lambda: time.monotonic() - self.saved_at)  # one clock decides
        return seconds >= 60 * checkpoint.minutes

    def save(self) -> None:
        """Save the state of the last finished step: of now, or from before the step that is given up."""
        state = self.state
        with state.ledger.stage("checkpoint"):
            check_weights(state.learner)
            self.background.drain()  # a checkpoint claims that everything up to its step is on disk
            self.opened.lock.check()
            host = self.last_finished or state.host_state(self.opened)
            self.opened.checkpoints.save(host["step"], state.learner.arrays(), state.as_json(host), host["evaluated"])
            self.saved_at = time.monotonic()
        self.callbacks.on_checkpoint(host["step"])

    def _save_last_finished(self) -> str:
        """Save the last finished step unless it is saved, and say what was; a resumed run goes on from there."""
        step = self.last_finished["step"] if self.last_finished else self.state.step
        if step and self.opened.checkpoints.latest_step() != step:
            self.save()
            self.opened.checkpoints.wait()  # what fails in the background is to be said before "is saved"
        saved = f"step {step} is saved" if step else "nothing was to be saved"
        return f"step {self.state.step} is given up, {saved}" if self.last_finished else saved

    def export(self) -> None:
        """Write what the run leaves beside its checkpoints, before the summary says that it is finished."""

    def finish(self, **amounts: int) -> None:
        """Evaluate the last weights if that is asked for and not done yet; write the last checkpoint and summary.

        ``amounts``: further entries of the summary.
        """
        state = self.state
        if self.config.evaluation.end:
            state.evaluated = state.evaluated or self.evaluate("evaluating the end")
        self.save()
        self.opened.checkpoints.wait()
        self.export()
        if self.session.processes.first:
            summary = run_summary(self.config, self.opened.verb, state)
            write_json_atomic(self.opened.directory.summary, summary | amounts)
        self.console.summary(state.before, state.evaluated, self.opened.directory)
        self.console.note(compilation_line(state.ledger))


class TrainingRun(OngoingRun):
    """A run of ``fr3e train``: its steps, and what is due after each."""

    state: TrainingState

    def __init__(self, opened: OpenedRun, ledger: TokenLedger, callbacks: Sequence[Callback] = ()):
        (state, restored), training = open_state(opened, ledger), opened.config.training
        limits = {"max_steps": training.max_steps, "max_sampled_tokens": training.max_sampled_tokens}
        limits |= {"first_step": state.step, "sampled_tokens": ledger.sampled_tokens}
        super().__init__(opened, state, restored, callbacks, **limits)
        if restored and self.session.processes.first:
            stored = self.config.runtime.store_rollouts
            self.changes += missing_records(opened.directory, restored.step, stored=stored)

    def compiled_ahead(self) -> contextlib.AbstractContextManager:
        runtime = self.config.runtime  # a profile would show the threads' work as the run's
        # On one core they would only take time from it, for sizes that the run may never need.
        no_threads = self.session.processes.count > 1 or usable_cores() < 2
        if not runtime.compile_ahead or runtime.profile_steps or no_threads:
            return contextlib.nullcontext()
        learner = self.state.learner
        return compiled_ahead(self.session, learner.programs, learner.critic and learner.critic.programs)

    def announce(self) -> None:
        super().announce()
        for line in uncorrected(self.config):
            self.console.note(line)

    def steps_left(self) -> Iterator[int]:
        """The numbers of the steps to take, until the budget is spent.

        Raises:
          Stopped: after a step, where a signal, a notice of preemption or a callback asks for it.
        """
        gc.collect()
        gc.freeze()  # modules and traced programs: each collection took 0.25 s to look through them
        while not self.budget_spent():
            with self.profiler.step(self.state.step + 1):  # with its evaluation and checkpoint
                yield self.state.step + 1
            self._end_of_step()

    def budget_spent(self) -> bool:
        """Return True if the run ends after the steps that are finished."""
        state = self.state
        steps, tokens = self.config.training.max_steps, self.config.training.max_sampled_tokens
        return bool((steps and state.step >= steps) or (tokens and state.ledger.sampled_tokens >= tokens))

    @contextlib.contextmanager
    def step(self) -> Iterator[StepRecord]:
        """A block that takes the step ``state.step``; its record is written at the end.

        The state of the step before is kept meanwhile: a stop gives the step up and saves that state.
        """
        state, record = self.state, StepRecord(self)
        self.last_finished = state.host_state(self.opened) | {"step": state.step - 1}
        yield record
        self.last_finished, state.evaluated = None, {}
        record.write()

    def _end_of_step(self) -> None:
        """Compare the processes' counts, raise what failed in the background, and stop if asked to."""
        state, processes = self.state, self.session.processes
        counts = {"updates": state.learner.updates, "sampled_tokens": state.ledger.sampled_tokens}
        seconds = processes.exchange(f"the end of step {state.step}", cpu_seconds_of_process(), **counts)
        self.background.check()
        state.ledger.cpu_seconds_elsewhere = sum(seconds) - seconds[processes.index]
        self.stop.check()

    def evaluation_due(self) -> bool:
        """Return True if the weights of the finished steps are to be evaluated, and not as the last ones."""
        state, every = self.state, self.config.evaluation.every
        return bool(every and state.step and state.step % every == 0 and not self.budget_spent())

    def checkpoint_due(self) -> bool:
        """Return True if the finished step is to be saved; the last one is saved with its evaluation, by `finish`."""
        return not self.budget_spent() and bool(self.state.evaluated or self.save_due(self.state.step))


class StepRecord:
    """The rollouts and the metrics of a step."""

    def __init__(self, run: TrainingRun):
        self._run, self._state = run, run.state
        self._metrics: dict[str, float] = {}
        processes = run.session.processes
        self._mine = slice(processes.index, None, processes.count)  # of rollouts, whose tokens this process sums up

    def rollouts(self, batch: Batch) -> None:
        """Take over the metrics of what the step sampled, and store its rollouts."""
        run, step = self._run, self._state.step
        run.console.stage("updating")
        self._of_rollouts = run.background.call(rollout_metrics, batch.groups, batch.explored)
        entropies = entropies_of(batch.groups)[self._mine]
        self._entropies = run.background.call(moments, entropies)
        self._trunks, self._metrics = batch.trunks, self._metrics | batch.metrics
        with self._state.ledger.stage("store"):
            run.records.rollouts(step, batch.groups, batch.explored + batch.returned)

    def metrics(self, metrics: dict[str, float]) -> None:
        """Take over metrics of the update."""
        self._metrics |= metrics

    def write(self) -> None:
        """Tell the callbacks the metrics, and write and show these with those that they return."""
        run, step = self._run, self._state.step
        branches = [branch for trunk in self._trunks for branch in trunk.branches][self._mine]
        advantages = moments([branch.trained(branch.advantages) for branch in branches])  # which an update may replace
        of_tokens = token_metrics(run.session.processes.gather([self._entropies.result(), advantages]))
        metrics = self._of_rollouts.result() | of_tokens | batch_metrics(self._trunks, step)
        metrics |= self._metrics | self._state.ledger.step_metrics()
        answer = CallbackAnswer({}, stop=False)
        try:
            answer = run.callbacks.on_step(step, metrics)
        finally:
            metrics |= answer.metrics
            run.records.metrics(step, metrics)
            run.console.step(step, metrics)
            run.last_metrics = {"step": step} | metrics
        if answer.stop:
            run.stop.ask("a callback")


def _shared(config: Config) -> dict[str, Any]:
    """The settings that all processes must share; ``runtime`` and ``rewards`` may differ."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in ("runtime", "rewards")}
