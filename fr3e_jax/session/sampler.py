"""The sampler of a run: its decoder, its tools, and its weights in the layout of rollouts."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

from fr3e_jax.policy.network import Params
from fr3e_jax.programs.reshard import RolloutWeights
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.episodes import Episodes
from fr3e_jax.rollouts.rehearsed_calls import RehearsedTools
from fr3e_jax.rollouts.requests import CachedTrunk, DecodeCounts, Ended, Key, Rollout, Selector, TrunkRequest
from fr3e_jax.rollouts.suspension import SamplingSuspended, SuspendedCall
from fr3e_jax.rollouts.tool_calls import Toolbox
from fr3e_jax.rollouts.two_threads import sample_in_two_threads, two_threads_pay


@dataclass
class Watch:
    """Tells how many responses of a call have ended: ``report(done, total)``."""

    report: Callable[[int, int], None] | None = None

    def counting(self, requests: Sequence[TrunkRequest], ended: Ended | None) -> Ended | None:
        """``ended``, which also reports; as it is if nobody wants a report."""
        report = self.report
        if report is None:
            return ended
        done, total = 0, sum(len(request.branches) for request in requests)
        report(0, total)

        def counted(rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
            nonlocal done
            done += len(rollouts)
            report(done, total)
            if ended is not None:
                ended(rollouts)

        return counted


@dataclass
class FinishedCall:
    """What a finished call of the sampler gave, so that a round can be run again without sampling."""

    rollouts: list[list[Rollout]]
    promoted: dict[Key, CachedTrunk]  # without its cache where no trunk of the round needs it any more
    counts: DecodeCounts
    tool_counts: Counter[str]


@dataclass
class SuspendedRound:
    """The sampler's calls of a round that was stopped: the finished ones, and the one that goes on, if it had begun."""

    finished: list[FinishedCall] = field(default_factory=list)
    going_on: SuspendedCall | None = None
    tool_counts: Counter[str] = field(default_factory=Counter)  # of that call so far


class Journal:
    """The sampler's calls of the round under way.

    A caller holds the cached trunks that it still needs: the journal does not keep their memory. A round that is run
    again gets the results of its finished calls, is told of their rollouts, and is asked for the same choices.
    """

    def __init__(self, earlier: SuspendedRound | None = None):
        earlier = earlier or SuspendedRound()
        self._repeated, self._going_on = list(earlier.finished), earlier.going_on
        self._tool_counts = earlier.tool_counts
        self._finished: list[tuple[FinishedCall, dict[Key, weakref.ref[CachedTrunk]]]] = []

    def repeated(self) -> FinishedCall | None:
        """The next call that an earlier process has finished, if there is one more."""
        return self._repeated.pop(0) if self._repeated else None

    def going_on(self) -> tuple[SuspendedCall | None, Counter[str]]:
        """Where the next call goes on, if an earlier process has begun it, and its counts of tools."""
        found, self._going_on = (self._going_on, self._tool_counts), None
        self._tool_counts = Counter()
        return found

    def add(self, call: FinishedCall) -> None:
        """Note a finished call."""
        held = {key: weakref.ref(trunk) for key, trunk in call.promoted.items()}
        without = {key: replace(trunk, batch=None) for key, trunk in call.promoted.items()}
        self._finished.append((replace(call, promoted=without), held))

    def suspended(self, going_on: SuspendedCall | None, tool_counts: Counter[str]) -> SuspendedRound:
        """The round's calls, at a stop."""
        finished = [
            replace(call, promoted={key: held[key]() or trunk for key, trunk in call.promoted.items()})
            for call, held in self._finished
        ]
        return SuspendedRound(finished, going_on, tool_counts)


class RoundSuspended(Exception):
    """All processes stop within a round; ``calls`` says where it goes on."""

    def __init__(self, calls: SuspendedRound):
        super().__init__("a round stopped between two chunks")
        self.calls = calls


@dataclass
class Sampler:
    """The rollout engine of a run with the run's tools or environment, if it has any."""

    engine: RolloutEngine
    weights: RolloutWeights
    toolbox: Toolbox | Episodes | RehearsedTools | None = None
    watch: Watch = field(default_factory=Watch)
    journal: Journal | None = None  # of a round of training

    def sample(
        self,
        params: Params,
        requests: Sequence[TrunkRequest],
        select: Selector | None = None,
        ended: Ended | None = None,
    ) -> tuple[list[list[Rollout]], dict[Key, CachedTrunk]]:
        """`RolloutEngine.sample` with the run's tools. ``params``: from ``weights.of``.

        Raises:
          RoundSuspended: in a `round_of_training`, the run stops between two chunks.
        """
        if self.journal is None:
            return self._sample(params, requests, select, ended, None)
        if (again := self.journal.repeated()) is not None:
            return self._repeat(again, select, ended)
        counts, tools = replace(self.engine.counts), self._tool_counts()
        going_on, earlier = self.journal.going_on()
        if self.toolbox is not None:
            self.toolbox.counts.update(earlier)
        try:
            found = self._sample(params, requests, select, ended, going_on)
        except SamplingSuspended as stop:
            raise RoundSuspended(self.journal.suspended(stop.call, self._tool_counts() - tools)) from None
        now = self.engine.counts
        spent = DecodeCounts(**{f.name: getattr(now, f.name) - getattr(counts, f.name) for f in fields(now)})
        self.journal.add(FinishedCall(*found, spent, self._tool_counts() - tools))
        return found

    def _sample(self, params, requests, select, ended, going_on):
        ended = self.watch.counting(requests, ended)
        if self.toolbox is None:
            return self.engine.sample(params, requests, select, ended, None, going_on)
        with contextlib.closing(self.toolbox.answering(requests)) as calls:
            return self.engine.sample(params, requests, select, ended, calls, going_on)

    def _repeat(self, call: FinishedCall, select: Selector | None, ended: Ended | None):
        """The result of a call that an earlier process has finished.

        Raises:
          ValueError: ``select`` chose other branches.
        """
        assert self.journal is not None
        self.journal.add(call)
        self.engine.counts = self.engine.counts.plus(call.counts)
        if self.toolbox is not None:
            self.toolbox.counts.update(call.tool_counts)
        if ended is not None:
            ended([(i, b, rollout) for i, row in enumerate(call.rollouts) for b, rollout in enumerate(row)])
        for request, row in enumerate(call.rollouts if select is not None else ()):
            if row:
                chosen = {(request, branch) for branch in select(request, row, True) or ()}
                found = {key for key in call.promoted if key[0] == request}
                if chosen != found:
                    raise ValueError(f"{sorted(chosen)} were chosen; expected {sorted(found)}, as before the stop")
        return call.rollouts, call.promoted

    @contextlib.contextmanager
    def round_of_training(self, earlier: SuspendedRound | None) -> Iterator[Journal]:
        """A block whose calls are noted, and go on where an earlier process stopped."""
        self.journal = Journal(earlier)
        try:
            yield self.journal
        finally:
            self.journal = None

    def _tool_counts(self) -> Counter[str]:
        return Counter(self.toolbox.counts) if self.toolbox is not None else Counter()

    def sample_uncounted(self, params: Params, requests: Sequence[TrunkRequest], ended: Ended) -> list[list[Rollout]]:
        """The rollouts of `sample` without a selector, in two threads where that is faster; nothing is counted."""
        if self.toolbox is None and two_threads_pay(self.engine, requests):
            results = sample_in_two_threads(self.engine, params, requests, self.watch.counting(requests, ended))
        else:
            results, _ = self.sample(params, requests, ended=ended)
        self.engine.take_counts()
        return results
