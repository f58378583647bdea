"""The training loop, in the order of the method (FR3E; with explore off, GRPO++ and its relatives).

prompts -> First Return -> rewards -> rejection and refill -> anchors -> explore -> rewards -> values -> advantages ->
full batch -> mini-batch updates -> metrics, checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fr3e_jax.cluster.membership import across_processes, farewell, last_words
from fr3e_jax.cluster.processes import Divergence
from fr3e_jax.configuration import save_config
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.sampler_rules import uncorrected
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.task import Task
from fr3e_jax.learning.finiteness import check_weights
from fr3e_jax.learning.learner import abstract_learner, fresh_learner, restored_learner
from fr3e_jax.learning.row_forecast import planned_menu, restored_menu
from fr3e_jax.learning.update import update_policy
from fr3e_jax.loop import resumption, step_report
from fr3e_jax.loop.callbacks import Callback
from fr3e_jax.loop.collection import NoSignal, collect
from fr3e_jax.loop.evaluate import Evaluation, best_metric, evaluate
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.grading import Grading, GradingFailed
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.progress import Progress
from fr3e_jax.loop.prompts import PromptFeed, summary_of
from fr3e_jax.loop.rollout_entries import Entry, bytes_of, records_of
from fr3e_jax.loop.rounds import Rounds
from fr3e_jax.loop.run_report import NON_FINITE, compilation_line, non_finite_message, run_summary
from fr3e_jax.loop.tree_table import held_out_table, tree_table
from fr3e_jax.policy.network import Params
from fr3e_jax.programs import explore_programs
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.background import Background, WriteFailed
from fr3e_jax.runs.checkpoint_damage import CheckpointFailed, told_in_a_line
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.runs.console import Console, is_share, say
from fr3e_jax.runs.ledger import TokenLedger, cpu_seconds_of_process
from fr3e_jax.runs.metrics import MetricsWriter, recorded_evaluation
from fr3e_jax.runs.profile import Profiler
from fr3e_jax.runs.rollout_parts import Part
from fr3e_jax.runs.run_directory import RunDirectory, check_seen_by_all, open_run, write_json_atomic
from fr3e_jax.runs.run_lock import RunDirectoryGone, RunLock
from fr3e_jax.runs.run_state import StatusFile
from fr3e_jax.runs.signals import Stopped, StopRequest
from fr3e_jax.runs.trackers import check_installed, open_trackers
from fr3e_jax.session.declared_programs import compiled_ahead
from fr3e_jax.session.run_identity import identity
from fr3e_jax.session.session import Session, open_session
from fr3e_jax.stores.mirror import Mirror
from fr3e_jax.stores.objects import join
from fr3e_jax.stores.reading import Place
from fr3e_jax.studies.reports.run_page import report_at_the_end

TABLE_EVERY = 10  # training steps between two tables of sampled trees for the trackers


@across_processes
def train(
    config: Config,
    run_dir: Place | None = None,
    resume: bool = False,
    *,
    task: Task | None = None,
    callback: Callback | None = None,
) -> int:
    """``fr3e train``: train and return the exit code.

    With ``resume``, the run in ``run_dir`` continues exactly from its last checkpoint.

    Args:
      config: the settings.
      run_dir: the directory of the run, or its address in an object store; None: a new one, as the settings say.
      resume: whether it goes on.
      task: the problems and their verifier; None: those that ``data.task`` names.
      callback: is told what happens; None: nobody.
    """
    if run_dir is not None:
        config.runtime.run_dir = str(run_dir)
    ledger = TokenLedger()
    check_installed(config.runtime.trackers)
    say("opening the model, its data and the verifier", config.runtime.console)
    session = open_session(config, task, keeps_routes=True)
    keep = {"keep_last": config.checkpoint.keep_last, "keep_best": config.checkpoint.keep_best}
    with RunLock() as lock, session.grader, told_in_a_line(), Mirror() as mirror:
        opened = partial(open_run, config, run_dir, resume, "train", lock, mirror)
        run = RunDirectory(session.processes.on_first(opened))
        check_seen_by_all(run, config, session.processes.gather)
        options = keep | {"best_metric": best_metric(config), "mirror": mirror}
        with Checkpointer(run.checkpoints, **options) as checkpoints:
            trainer = Trainer(session, run, lock, checkpoints, ledger, callback)
            if resume and session.processes.first:  # only now: settings that do not fit the checkpoint have raised
                save_config(config, run.path, resumed_step=trainer.progress.step)
            return trainer.run()
    return 1


class Trainer:
    """One training run: its state between steps, and the steps in their order."""

    def __init__(
        self,
        session: Session,
        run: RunDirectory,
        lock: RunLock,
        checkpoints: Checkpointer,
        ledger: TokenLedger,
        callback: Callback | None = None,
    ):
        self.session, self.config, self.run_dir, self.lock = session, session.config, run, lock
        self.checkpoints, self.ledger, self.stop = checkpoints, ledger, StopRequest(session.processes.asked_to_stop)
        self.status = StatusFile(run, writes=session.processes.first)
        processes = session.processes
        self.background = Background(processes.gather if processes.count > 1 else None)
        self.part = Part(processes.index, processes.count)  # of the rollouts that are stored
        self.prompts = PromptFeed(
            session.task.problems("train"),
            session.texts,
            self.config.data,
            self.config.rollout.prompts_per_round,
            self.background,
        )
        session.sampler.engine.stop_here = self.stop.check
        self.progress = Progress(KeptBases(self.config.returns))
        with as_config_error():
            self.identity = identity(
                self.config, session.task, session.texts.codec, base=session.model.base_fingerprint()
            )
        self.changes: list[str] = []  # since the checkpoint, a line for each
        programs, critic = session.model.train_programs(session.config), session.model.critic_programs(session.config)
        latest = self._restore(programs, critic)
        first = session.processes.first
        self.callback = callback if callback is not None and first else Callback()
        self.metrics: contextlib.AbstractContextManager = contextlib.nullcontext()  # one process writes
        if first:
            self._open_records(latest)
        if latest:
            self._complete_evaluation(latest)
        self.trackers = open_trackers(self.config, run, writes=first)
        self.current = self.progress.step  # the step under way
        self.before_step: dict[str, Any] | None = None  # the host's state at its start, while it is sampled
        self.saved = time.monotonic()  # or, before the first checkpoint, when the run began
        self.last_metrics: dict[str, Any] = {}  # of the last finished step
        self.console = Console(
            self.config.runtime.console if first else "none",
            max_steps=self.config.training.max_steps,
            max_sampled_tokens=self.config.training.max_sampled_tokens,
            first_step=self.progress.step,
            sampled_tokens=ledger.sampled_tokens,
            compiled=lambda: compilations().programs,
        )
        session.sampler.watch.report = self.console.progress
        kept = (self.progress.kept_bases, self.progress.yields)
        self.rounds = Rounds(session, self.prompts, *kept, ledger, self.console, self._compare)
        owners = [session.sampler.engine.programs, programs, session.sampler.weights, explore_programs]
        steps = self.config.runtime.profile_steps * first
        self.profiler = Profiler(steps, run, ledger, self.background, owners, Grading)

    def _restore(self, programs: Any, critic: Any) -> int | None:
        """Take weights and state from the newest checkpoint and return its step; None: a fresh run, there is none."""
        kept = {"reference": self.config.kl.coefficient > 0}
        held = abstract_learner(programs, critic, **kept)
        with as_config_error():
            restored = self.checkpoints.restore_newest(held, set_aside=self.session.processes.count == 1)
        if restored is None:
            params = self.session.model.fresh_params(self.config)
            self.learner = fresh_learner(programs, params, critic, **kept)
            self.learner.menu = planned_menu(self.session.learning, programs.shards)
            return None
        latest, arrays, host = restored
        allowed = self.config.runtime.allow_changes
        self.changes += resumption.since_checkpoint(host, self.identity, self.run_dir, "train", allowed)
        self.progress = Progress.restore(host, self.progress.kept_bases, self.prompts, self.ledger)
        self.learner = restored_learner(programs, critic, arrays, self.progress.updates)
        self.learner.menu = restored_menu(self.session.learning, programs.shards, host.get("row_menu", []))
        return latest

    def _open_records(self, latest: int | None) -> None:
        """Drop what an earlier process wrote after its last checkpoint, and go on writing."""
        runtime = self.config.runtime
        rollout_store.drop_after(self.run_dir, latest)
        self.metrics = MetricsWriter(self.run_dir, tensorboard=runtime.tensorboard, resume_step=latest)
        if latest:
            stored = runtime.store_rollouts
            self.changes += resumption.missing_records(self.run_dir, latest, rollouts=stored, samples=stored)

    def _complete_evaluation(self, latest: int) -> None:
        """Let checkpoint and metrics both have the evaluation of this step, if one of them has it."""
        path = self.run_dir.metrics
        recorded = self.session.processes.on_first(partial(recorded_evaluation, path, latest))
        if self.session.processes.first and self.progress.evaluated and not recorded:
            self.metrics.write(latest, self.progress.evaluated, kind="eval")
            self.changes.append(f"{path} lacked the evaluation of step {latest}; the checkpoint had it")
        # A checkpoint without one: a signal interrupted the evaluation, and perhaps it was made since.
        self.progress.evaluated = self.progress.evaluated or recorded

    def run(self) -> int:
        """Train to the end of the budget or to a signal; return the exit code."""
        with self.status:
            try:
                code = self._run()
            except (WriteFailed, CheckpointFailed, RunDirectoryGone, GradingFailed, Divergence) as error:
                code = self._failed(self.progress.step, str(error))
            except NON_FINITE as error:  # these weights must not be saved
                newest, way_on = self.checkpoints.latest_step(), self._way_on()
                updates = self.learner.updates
                message = non_finite_message(self.config, error, self.last_metrics, updates, newest, way_on)
                code = self._failed(self.current, message)
        for line in self.profiler.report():
            print(line)
        self.callback.on_end(self.status.ending.state, self.status.ending.reason)
        self.trackers.finish(failed=code != 0)
        return code

    def _failed(self, step: int, message: str) -> int:
        """Say why the run ends here; return its exit code."""
        print(f"fr3e: stopped at step {step}: {message}", file=sys.stderr)
        self.status.end("failed", f"step {step}: {message}")
        return 1

    def _run(self) -> int:
        with self.metrics, self.console, self.background, self.stop, self._compiled_ahead():
            self._compare("start", _start, self.config, self.progress.step, self.prompts.position)
            self._announce()
            self.callback.on_start(self.run_dir.path, self.progress.step)
            if self.progress.step:
                self.console.note(f"resumed from the checkpoint of step {self.progress.step}")
            for line in self.changes if self.session.processes.first else ():
                print(f"fr3e: {line}", file=sys.stderr)
            for line in (*uncorrected(self.config), *summary_of(self.prompts.unspeakable(), "training data")):
                self.console.note(line)
            try:
                return self._steps()
            except Stopped as reason:
                return self._stopped(str(reason))

    def _compiled_ahead(self) -> contextlib.AbstractContextManager:
        runtime = self.config.runtime  # a profile would show the threads' work as the run's
        if not runtime.compile_ahead or runtime.profile_steps or self.session.processes.count > 1:
            return contextlib.nullcontext()
        critic = self.learner.critic
        return compiled_ahead(self.session, self.learner.programs, critic and critic.programs)

    def _steps(self) -> int:
        if not self.progress.before:
            self.progress.before = self._evaluate("evaluating the start")
        elif self._evaluation_due():
            if not self.progress.evaluated:  # a signal had interrupted it
                self.progress.evaluated = self._evaluate("evaluating")
            self.checkpoints.rank(self.progress.step, self.progress.evaluated)
        gc.collect()
        gc.freeze()  # modules and traced programs: each collection took 0.25 s to look through them
        while not self._budget_spent():
            try:
                with self.profiler.step(self.progress.step + 1):
                    self._step()
            except NoSignal as error:
                self._save()
                return self._failed(self.progress.step + 1, str(error))
            self._end_of_step()
        self._finish()
        self.status.end("finished")
        return 0

    def _stopped(self, reason: str) -> int:
        """Save the state of the last finished step; return the exit code. A resumed run goes on from there."""
        step, saved = self.progress.step, "nothing was to be saved"
        if step:
            if self.checkpoints.latest_step() != step:
                self._save(self.before_step)
            saved = f"step {step} is saved"
        given_up = f"step {self.current} is given up, " if self.current > step else ""
        self.console.note(f"{reason}: {given_up}{saved}; {self._way_on()}")
        self.status.end("stopped", reason)
        return 0

    def _way_on(self) -> str:
        place = self.run_dir.address
        return f"continue with fr3e train {join(place, self.run_dir.config.name)} --resume {place}"

    # -- one step ----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """One full batch, from prompts to new weights."""
        step = self.current = self.progress.step + 1
        self.before_step = self._host_state()
        params = self._rollout_params(self.learner.params)
        found = collect(self.rounds, self.progress, params, step)
        batch, groups, credited = found.batch, found.groups, found.credited
        self.session.sampler.weights.release()
        self.console.stage("updating")
        of_rollouts = self.background.call(step_report.rollout_metrics, groups, credited)
        update = update_policy(self.session.learning, self.learner, step, batch, self.ledger)
        metrics = of_rollouts.result() | step_report.batch_metrics(batch, step) | update
        if self.config.kl.coefficient:
            metrics["kl/reset"] = float(self._reset_reference(step, metrics.get("reward/mean")))
        metrics |= found.metrics
        credited = credited + found.returned
        if self.config.runtime.store_rollouts:
            with self.ledger.stage("store"):
                entries = step_report.rollout_entries(step, groups, credited, self.part)
                self._store(f"the rollouts of step {step}", step, entries, "step")
        if self._trees_due(step):
            self.background.write(f"the table of step {step}", self._show_trees, step, groups, credited)
        metrics |= self.ledger.step_metrics()
        self.progress.step, self.progress.updates, self.progress.evaluated = step, self.learner.updates, {}
        self.before_step = None
        self._write(f"the metrics of step {step}", self._add_metrics, step, metrics)
        self.console.step(step, metrics)
        self.last_metrics = {"step": step} | metrics
        self._ask_to_stop(self.callback.on_step(step, metrics))
        if self._budget_spent():
            return  # the last checkpoint is saved after the last evaluation, whose metrics rank it
        if self._evaluation_due():
            self.progress.evaluated = self._evaluate("evaluating")
        if self.progress.evaluated or self._checkpoint_due():
            self._save()

    def _rollout_params(self, params: Params) -> Params:
        """The weights in the layout and type of rollouts; they are copied at most once for each set of weights."""
        weights = self.session.sampler.weights
        if not weights.copies:
            return weights.of(params)
        with self.ledger.stage("reshard"):
            return weights.of(params)

    def _reset_reference(self, step: int, reward: float | None) -> bool:
        """Reset the reference to the policy if due; return whether it was."""
        due = self.progress.resets.due(self.config.kl, step, reward)
        if due:
            self.learner.reset_reference()
            self.learner.restart_optimizer()
        return due

    def _write(self, what: str, function: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """Call ``function`` in the background, on the first process; ``what`` names its content in an error."""
        if self.session.processes.first:
            self.lock.check()
            self.background.write(what, partial(function, *arguments, **named))

    def _add_metrics(self, step: int, metrics: dict[str, float], kind: str = "train") -> None:
        self.metrics.write(step, metrics, kind=kind)
        self.trackers.metrics(step, metrics, kind)

    def _store(self, what: str, step: int, entries: list[Entry], stem: str) -> None:
        """Write this process's part of the rollouts in the background."""
        self.lock.check()
        write = partial(rollout_store.write_rollouts, self.run_dir, step, stem=stem, part=self.part)
        records = records_of(entries, self.session.texts)
        self.background.write(what, write, records, size_bytes=bytes_of(entries))

    def _show_trees(self, step: int, groups: list[PromptGroup], credited: list[Credited]) -> None:
        records = step_report.rollout_records(step, groups, credited)
        columns, rows = tree_table(records, self.session.texts.codec.decode)
        self.trackers.table("rollouts", step, columns, rows)

    def _show_held_out(self, evaluation: Evaluation, step: int) -> None:
        columns, rows = held_out_table(evaluation.records(step), self.session.texts.codec.decode)
        self.trackers.table("held_out", step, columns, rows)

    # -- with the other processes ------------------------------------------------------------------------------------

    def _compare(self, stage: str, describe: Callable[..., dict[str, Any]], *of: Any) -> None:
        """Stop the run unless all processes are at this stage of this step with the same ``describe(*of)``."""
        if self.session.processes.count > 1:
            self.session.processes.agree(f"step {self.progress.step + 1}, {stage}", **describe(*of))

    def _ask_to_stop(self, wanted: bool | None) -> None:
        if wanted:
            self.stop.ask("a callback")

    def _end_of_step(self) -> None:
        """Compare the processes' counts, raise what failed in the background, and stop if asked to.

        Raises:
          Stopped: a signal, a notice of preemption or a callback asks for it.
        """
        processes, step = self.session.processes, self.progress.step
        told = processes.exchange(f"the end of step {step}", cpu_seconds_of_process(), **self._counted())
        self.background.check()
        self.ledger.cpu_seconds_elsewhere = sum(told) - told[processes.index]
        self.stop.check()

    def _counted(self) -> dict[str, int]:
        """Counts that all processes must agree on."""
        return {"updates": self.progress.updates, "sampled_tokens": self.ledger.sampled_tokens}

    def _announce(self) -> None:
        """Set the last words of each process: how to continue the run if the process is ended."""
        processes = self.session.processes
        if processes.count > 1:
            number = f"process {processes.index} of {processes.count}"
            last_words.set(farewell(number, self._way_on().replace("continue", "continue from the last checkpoint", 1)))

    # -- around the steps --------------------------------------------------------------------------------------------

    def _budget_spent(self) -> bool:
        """Whether the run ends after the finished steps."""
        t = self.config.training
        steps_done = t.max_steps and self.progress.step >= t.max_steps
        return bool(steps_done or (t.max_sampled_tokens and self.ledger.sampled_tokens >= t.max_sampled_tokens))

    def _trees_due(self, step: int) -> bool:
        runtime = self.config.runtime
        wanted = self.session.processes.first and runtime.trackers
        return bool(wanted and step % TABLE_EVERY == 0)

    def _checkpoint_due(self) -> bool:
        checkpoint = self.config.checkpoint
        if self.progress.step % checkpoint.every == 0:
            return True
        waited = lambda: time.monotonic() - self.saved >= 60 * checkpoint.minutes
        return bool(checkpoint.minutes) and self.session.processes.on_first(waited)  # one clock decides

    def _evaluation_due(self) -> bool:
        every, step = self.config.evaluation.every, self.progress.step
        return bool(every and step and step % every == 0 and not self._budget_spent())

    def _evaluate(self, stage: str) -> dict[str, float]:
        self.console.stage(stage)
        with self.ledger.stage("evaluate"):
            evaluation = evaluate(self.session, self.learner.params, self.console.note)
        what = f"the evaluation of step {self.progress.step}"
        if self.config.runtime.store_rollouts:
            step = self.progress.step
            self._store(what, step, evaluation.entries(step, self.part), "eval")
        if self.config.runtime.trackers:
            self._write(what, self._show_held_out, evaluation, self.progress.step)
        result = evaluation.metrics
        self._write(what, self._add_metrics, self.progress.step, result, kind="eval")
        shown = "  ".join(f"{name} {value:.1%}" for name, value in result.items() if is_share(name))
        self.console.note(f"held-out after step {self.progress.step}: {shown}")
        self._ask_to_stop(self.callback.on_evaluation(self.progress.step, result))
        return result

    def _save(self, host: dict[str, Any] | None = None) -> None:
        """Save a checkpoint of the last finished step; ``host``: the host's state, None: that of now."""
        with self.ledger.stage("checkpoint"):
            check_weights(self.learner)
            self.background.drain()  # a checkpoint claims that everything up to its step is on disk
            self.lock.check()
            host = host or self._host_state()
            self.checkpoints.save(self.progress.step, self.learner.arrays(), host, self.progress.evaluated)
            self.saved = time.monotonic()
        self.callback.on_checkpoint(self.progress.step)

    def _host_state(self) -> dict[str, Any]:
        host = self.progress.host_state(self.config, self.prompts.state_dict(), self.ledger)
        return host | {"identity": self.identity, "row_menu": self.learner.menu.to_json()}

    def _finish(self) -> None:
        # A finished run that is resumed was evaluated already: an uninterrupted run has no second record.
        after = self.progress.evaluated = self.progress.evaluated or self._evaluate("evaluating the end")
        self._save()
        self.checkpoints.wait()
        if self.session.processes.first:
            write_json_atomic(self.run_dir.summary, run_summary(self.config, self.progress, self.ledger, after))
        self.console.summary(self.progress.before, after, self.run_dir)
        self.console.note(compilation_line(self.ledger))
        if self.config.runtime.report and self.session.processes.first:
            self._report()

    def _report(self) -> None:
        """Write the page of the run; a failure costs one line, for everything else is saved."""
        self.console.stage("writing the report")
        path, failure = report_at_the_end(self.run_dir.path)
        if path:
            self.console.note(f"report: {path}")
        else:
            again = f"try again with fr3e report {self.run_dir.path}"
            print(f"fr3e: the report was not written ({failure}); {again}", file=sys.stderr)


def _start(config: Config, *progress: int) -> dict[str, Any]:
    """The settings and progress that all processes must share; ``runtime`` and ``rewards`` may differ."""
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in ("runtime", "rewards")}
    return {"settings": settings, "progress": list(progress)}
