"""Full batches: rounds of prompts until enough rollouts train; now, or a step ahead in a thread of its own."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from fr3e_jax.learning.experience import TrainingTrunk, count_rollouts, split_full_batch
from fr3e_jax.loop import agreement, step_report
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.progress import Progress
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.loop.rounds import Round, Rounds
from fr3e_jax.loop.run_report import no_signal_message
from fr3e_jax.policy.network import Params
from fr3e_jax.runs.ledger import COUNTERS, TokenLedger
from fr3e_jax.runs.safe_points import SafePoints
from fr3e_jax.session.sampler import RoundSuspended, SuspendedRound


class NoSignal(RuntimeError):
    """Several rounds of prompts in a row gave nothing to train on."""


class Abandoned(Exception):
    """The run ends, and nobody waits for these rollouts any more."""


@dataclass
class Start:
    """The state of a run before a batch: its progress, and the position of the prompts."""

    progress: Progress
    stream: dict[str, int]


@dataclass
class Collected:
    """A full batch, and what the rounds that filled it sampled."""

    batch: list[TrainingTrunk] = field(default_factory=list)
    groups: list[PromptGroup] = field(default_factory=list)
    credited: list[Credited] = field(default_factory=list)
    returned: list[Credited] = field(default_factory=list)  # continuations of kept bases
    metrics: dict[str, float] = field(default_factory=dict)  # of kept bases, tools, grading, prompts


@dataclass
class PartialBatch:
    """A batch that is not full: what its rounds sampled, and the calls of the round under way."""

    found: Collected
    ready: list[TrainingTrunk]  # those that train
    rounds_without_signal: int = 0
    calls: SuspendedRound = field(default_factory=SuspendedRound)
    tools: Counter[str] = field(default_factory=Counter)  # the step's tool calls before the round under way
    outcomes: list[Counter[str]] = field(default_factory=list)  # the step's verdicts before it, of each process


class CollectionStopped(Exception):
    """All processes stop while a batch is sampled: ``partial`` is what there is of it.

    ``before`` is the state of the run before the round under way.
    """

    def __init__(self, partial: PartialBatch, before: Start):
        super().__init__("sampling stopped inside a step")
        self.partial, self.before = partial, before


def state_of(progress: Progress, prompts: PromptFeed) -> Start:
    """A copy of the state, which does not change with the rounds to come."""
    kept = {name: copy.deepcopy(getattr(progress, name)) for name in ("kept_bases", "yields")}
    return Start(replace(progress, **kept), prompts.state_dict())


def collect(
    rounds: Rounds,
    progress: Progress,
    params: Params,
    step: int,
    sampled_in: int,
    points: SafePoints | None = None,
    earlier: PartialBatch | None = None,
) -> Collected:
    """Run rounds of prompts until ``training.batch_rollouts`` rollouts are ready to train.

    The next step starts with the surplus (``training.surplus=carry``), or the surplus is dropped.

    Args:
      rounds: the parts of the run.
      progress: its partial batch, kept bases and yields change.
      params: the weights in the layout of rollouts.
      step: the step that trains on the batch; it keys all noise.
      sampled_in: the first step whose weights ``params`` are; trunks get it as their step.
      points: where the run may stop; None: nowhere.
      earlier: what a stopped process had sampled; ``progress`` and the prompts are those of its stop.

    Raises:
      NoSignal: too many rounds in a row gave nothing to train on.
      CollectionStopped: the run stops between two rounds, or between two chunks of one.
    """
    config, part = rounds.session.config, earlier or PartialBatch(Collected(), progress.carried)
    if earlier is not None:
        rounds.session.set_counts(earlier.tools, earlier.outcomes)
    found = part.found
    while count_rollouts(part.ready) < config.training.batch_rollouts:
        missing = config.training.batch_rollouts - count_rollouts(part.ready)
        if points is None:
            done = rounds.run(params, step, missing)
        else:
            done = _run_or_stop(rounds, progress, params, step, missing, points, part)
        for trunk in done.trunks:
            trunk.step = sampled_in
        found.returned += done.returned
        found.groups += done.groups
        found.credited += done.credited
        part.ready = part.ready + done.trunks
        part.rounds_without_signal = done.silent + (0 if done.trunks else part.rounds_without_signal)
        if part.rounds_without_signal >= config.rollout.max_rounds_without_signal:
            progress.carried = part.ready
            raise NoSignal(no_signal_message(config, found.groups, found.credited, part.rounds_without_signal))
    found.batch, rest = split_full_batch(part.ready, config.training.batch_rollouts)
    rounds.compare("full batch", agreement.of_batch, found.batch)
    progress.carried = rest if config.training.surplus == "carry" else []
    found.metrics = _metrics(rounds, progress, found)
    return found


def _run_or_stop(
    rounds: Rounds,
    progress: Progress,
    params: Params,
    step: int,
    missing: int,
    points: SafePoints,
    part: PartialBatch,
) -> Round:
    """A round that may stop before it begins, and between its chunks.

    Raises:
      CollectionStopped: it did.
    """
    session, before = rounds.session, state_of(progress, rounds.prompts)
    calls, part.calls = part.calls, SuspendedRound()
    part.tools, outcomes = session.counts()

    def stopped(at: SuspendedRound) -> CollectionStopped:
        part.calls, part.outcomes = at, [Counter(told) for told in session.processes.gather(outcomes)]
        return CollectionStopped(part, before)

    if points.reached("round"):
        raise stopped(calls)
    try:
        with session.sampler.round_of_training(calls):
            return rounds.run(params, step, missing)
    except RoundSuspended as stop:
        raise stopped(stop.calls) from None


def _metrics(rounds: Rounds, progress: Progress, found: Collected) -> dict[str, float]:
    session, metrics = rounds.session, progress.kept_bases.metrics(found.returned)
    metrics |= step_report.tool_metrics(session.sampler, found.groups, found.credited + found.returned)
    return metrics | step_report.grading_metrics(session.grader) | rounds.prompts.metrics()


class Aside:
    """The console of work beside the run: its stages are not the run's, and ``note`` gets its lines."""

    def __init__(self, note: Callable[[str], None]):
        self.note = note

    def stage(self, name: str) -> None:
        """Show nothing."""


@dataclass
class AheadState:
    """The next step's batch at a stop: as far as it was sampled, with the state of the run before it."""

    start: Start
    counts: dict[str, int]  # of the ledger
    found: Collected | None  # it is full
    partial: PartialBatch | None


class Ahead:
    """The full batch of the next step, sampled in a thread while the current step trains (`rollout.async_steps`).

    Its tokens follow from the weights, the step and the state of the run at its start; so they do not depend on how
    the two threads share the machine. A checkpoint that is saved meanwhile has that state (`resumable`) and these
    weights, and a resumed run samples the batch again; a run that is told to stop keeps what is sampled (`stopped`).
    Until it is taken, nothing else may sample, or read the prompts, the partial batch, the kept bases and the yields.

    Args:
      rounds, progress: see `collect`.
      params: the weights in the layout of rollouts; nobody may donate or delete them.
      step: the step that will train on the batch.
      points: where the thread may stop.
      earlier: how far a stopped process had come.
    """

    def __init__(
        self,
        rounds: Rounds,
        progress: Progress,
        params: Params,
        step: int,
        points: SafePoints,
        earlier: AheadState | None = None,
    ):
        self._start = earlier.start if earlier else state_of(progress, rounds.prompts)
        self._ledger, self._watch, self._abandoned = TokenLedger(), rounds.session.sampler.watch, False
        for name, count in (earlier.counts if earlier else {}).items():
            setattr(self._ledger, name, count)
        self._shown, self._watch.report = self._watch.report, self._check
        aside = replace(rounds, ledger=self._ledger, console=Aside(rounds.console.note))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        if earlier and earlier.found:
            self._found: Future[Collected] = Future()
            self._found.set_result(earlier.found)
        else:
            partial = earlier.partial if earlier else None
            self._found = self._pool.submit(collect, aside, progress, params, step, step - 1, points, partial)

    def resumable(self, progress: Progress) -> Start:
        """The state of the run for a checkpoint: as before this batch, with the steps since."""
        return Start(since(self._start.progress, progress), self._start.stream)

    def stopped(self) -> tuple[AheadState | None, Start | None]:
        """How far the batch is, once the run has been told to stop; the thread is told, too.

        Returns:
          The batch, and the state of the run before the round under way; None: there is no such round. A batch that
          found no signal is None, with the state before it: a resumed run samples it again and says so.
        """
        self.wait()
        counts = {name: getattr(self._ledger, name) for name in COUNTERS}
        try:
            return AheadState(self._start, counts, self._found.result(), None), None
        except CollectionStopped as stop:
            return AheadState(self._start, counts, None, stop.partial), stop.before
        except NoSignal:
            return None, self._start

    def take(self, ledger: TokenLedger) -> Collected:
        """Wait for the batch; its counts and seconds are added to ``ledger``.

        Raises:
          NoSignal, CollectionStopped: see `collect`; and whatever else sampling raises.
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


def since(before: Progress, progress: Progress) -> Progress:
    """Progress before a batch was sampled ahead, with the steps that have ended since."""
    names = ("step", "updates", "before", "evaluated", "resets")
    return replace(before, **{name: getattr(progress, name) for name in names})
