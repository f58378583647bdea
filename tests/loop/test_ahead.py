"""A batch that was sampled ahead when the run was stopped: its checkpoints begin before it, its counts are its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fr3e_jax.configuration.schema import ReturnConfig
from fr3e_jax.loop.collection import Ahead, AheadState, Collected, Start
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.progress import Progress
from fr3e_jax.loop.round_size import Yield
from fr3e_jax.loop.rounds import Rounds
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.runs.safe_points import SafePoints

BEFORE = {"position": 3}


KEPT_BASES = KeptBases(ReturnConfig())


@pytest.fixture
def rounds() -> Rounds:
    """Rounds of a run whose prompts are beyond the batch."""
    session = SimpleNamespace(sampler=SimpleNamespace(watch=SimpleNamespace(report="of the run")))
    prompts = SimpleNamespace(state_dict=lambda: {"position": 9})
    console = SimpleNamespace(note=lambda line: None)
    return Rounds(session, prompts, KEPT_BASES, Yield(), TokenLedger(), console)


def ahead_of(rounds: Rounds, progress: Progress, earlier: AheadState) -> Ahead:
    points = SafePoints([], lambda received, number: "")
    return Ahead(rounds, progress, {}, 5, points, earlier)


def test_a_full_batch_taken_up_after_a_stop_keeps_the_state_before_it(rounds):
    earlier = AheadState(
        Start(Progress(KEPT_BASES, step=4, carried=["before"]), BEFORE), {"sampled_tokens": 70}, Collected(), None
    )
    progress = Progress(KEPT_BASES, step=5, updates=11, carried=["after"])
    ahead = ahead_of(rounds, progress, earlier)
    found = ahead.resumable(progress)
    assert found.stream == BEFORE
    assert (found.progress.step, found.progress.updates, found.progress.carried) == (5, 11, ["before"])
    again, at = ahead.stopped()
    assert at is None
    assert (again.start, again.counts["sampled_tokens"], again.found) == (earlier.start, 70, earlier.found)
    assert rounds.session.sampler.watch.report == "of the run"
    assert ahead.take(rounds.ledger) is earlier.found
    assert rounds.ledger.sampled_tokens == 70
