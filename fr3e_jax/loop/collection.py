"""Full batches: rounds of prompts until enough rollouts train; now, or a step ahead in a thread of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from fr3e_jax.cluster import agreement
from fr3e_jax.learning.experience import TrainingTrunk, count_rollouts, split_full_batch
from fr3e_jax.loop import step_report
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.progress import Progress
from fr3e_jax.loop.rounds import Rounds
from fr3e_jax.loop.run_report import no_signal_message
from fr3e_jax.policy.network import Params
from fr3e_jax.runs.ledger import TokenLedger


class NoSignal(RuntimeError):
    """Several rounds of prompts in a row gave nothing to train on."""


class Abandoned(Exception):
    """The run ends, and nobody waits for these rollouts any more."""


@dataclass
class Collected:
    """A full batch, and what the rounds that filled it sampled."""

    batch: list[TrainingTrunk] = field(default_factory=list)
    groups: list[PromptGroup] = field(default_factory=list)
    credited: list[Credited] = field(default_factory=list)
    returned: list[Credited] = field(default_factory=list)  # continuations of kept successes
    metrics: dict[str, float] = field(default_factory=dict)  # of archives, tools, grading and prompts, after the rounds


def collect(rounds: Rounds, progress: Progress, params: Params, step: int, sampled_in: int) -> Collected:
    """Run rounds of prompts until ``training.batch_rollouts`` rollouts are ready to train.

    The next step starts with the surplus (``training.surplus=carry``), or the surplus is dropped.

    Args:
      rounds: the parts of the run.
      progress: its partial batch, archives and yields change.
      params: the weights in the layout of rollouts.
      step: the step that trains on the batch; it keys all noise.
      sampled_in: the first step whose weights ``params`` are; trunks get it as their step.

    Raises:
      NoSignal: too many rounds in a row gave nothing to train on.
    """
    config, found, ready = rounds.session.config, Collected(), progress.carried
    rounds_without_signal = 0
    while count_rollouts(ready) < config.training.batch_rollouts:
        missing = config.training.batch_rollouts - count_rollouts(ready)
        done = rounds.run(params, step, missing)
        for trunk in done.trunks:
            trunk.step = sampled_in
        found.returned += done.returned
        found.groups += done.groups
        found.credited += done.credited
        ready = ready + done.trunks
        rounds_without_signal = done.silent + (0 if done.trunks else rounds_without_signal)
        if rounds_without_signal >= config.rollout.max_rounds_without_signal:
            progress.carried = ready
            raise NoSignal(no_signal_message(config, found.groups, found.credited, rounds_without_signal))
    found.batch, rest = split_full_batch(ready, config.training.batch_rollouts)
    rounds.compare("full batch", agreement.of_batch, found.batch)
    progress.carried = rest if config.training.surplus == "carry" else []
    found.metrics = _metrics(rounds, progress, found)
    return found


def _metrics(rounds: Rounds, progress: Progress, found: Collected) -> dict[str, float]:
    session, metrics = rounds.session, {}
    if session.config.explore.archive_size:
        metrics |= progress.archive.metrics(session.config.explore)
    if session.config.returns.size:
        metrics |= progress.returns.metrics(found.returned)
    metrics |= step_report.tool_metrics(session.sampler, found.groups, found.credited + found.returned)
    return metrics | step_report.grading_metrics(session.grader) | rounds.prompts.metrics()


class _Aside:
    """The console of a thread that works ahead: its stages are not the run's."""

    def __init__(self, note: Callable[[str], None]):
        self.note = note

    def stage(self, name: str) -> None:
        """Show nothing."""


class Ahead:
    """The full batch of the next step, sampled in a thread while the current step trains (`rollout.async_steps`).

    Its tokens follow from the weights, the step and the state of the run at its start; so they do not depend on how
    the two threads share the machine. A checkpoint that is saved meanwhile has that state (`resumable`) and these
    weights, and a resumed run samples the batch again. Until it is taken, nothing else may sample, or read the
    prompts, the partial batch, the archives and the yields.

    Args:
      rounds, progress: see `collect`.
      params: the weights in the layout of rollouts; nobody may donate or delete them.
      step: the step that will train on the batch.
    """

    def __init__(self, rounds: Rounds, progress: Progress, params: Params, step: int):
        self._before = replace(
            progress,
            archive=copy.deepcopy(progress.archive),
            returns=copy.deepcopy(progress.returns),
            yields=copy.deepcopy(progress.yields),
        )
        self._stream = rounds.prompts.state_dict()
        self._ledger, self._watch, self._abandoned = TokenLedger(), rounds.session.sampler.watch, False
        self._shown, self._watch.report = self._watch.report, self._check
        aside = replace(rounds, ledger=self._ledger, console=_Aside(rounds.console.note))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._found: Future[Collected] = self._pool.submit(collect, aside, progress, params, step, step - 1)

    def resumable(self, progress: Progress) -> tuple[Progress, dict[str, int]]:
        """Progress and position of the prompts for a checkpoint: as before this batch, with the steps since."""
        since = {name: getattr(progress, name) for name in ("step", "updates", "before", "evaluated", "resets")}
        return replace(self._before, **since), self._stream

    def take(self, ledger: TokenLedger) -> Collected:
        """Wait for the batch; its counts and seconds are added to ``ledger``.

        Raises:
          NoSignal: see `collect`; and whatever else sampling raises.
        """
        self.wait()
        ledger.add(self._ledger)
        return self._found.result()

    def wait(self) -> None:
        """Return when the batch is sampled, or has failed: the sampler is free then."""
        self._pool.shutdown(wait=True)
        self._watch.report = self._shown

    def abandon(self) -> None:
        """Let the thread end as soon as another response has ended; wait for that."""
        self._abandoned = True
        self.wait()

    def _check(self, done: int, total: int) -> None:
        if self._abandoned:
            raise Abandoned
