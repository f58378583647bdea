"""Rounds as large as the batch needs: the running yield, the prefix of a feed, and an exact resume."""

from __future__ import annotations

import pytest

from fr3e_jax.learning.learner import Learner
from fr3e_jax.loop import collection
from fr3e_jax.loop.collection import collect
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.round_size import Yield, certain_rounds
from fr3e_jax.loop.state import TrainingState
from fr3e_jax.runs.console import Console


def test_a_round_has_the_prompts_that_the_missing_rollouts_need():
    yields = Yield()
    assert yields.prompts_for(100, 16, 10) == 10, "nothing is known but the guess"
    yields.observe(16, 0)
    assert yields.prompts_for(100, 16, 10) == 16, "no prompt has given any"
    yields = Yield()
    yields.observe(16, 64)  # four rollouts a prompt
    assert [yields.prompts_for(missing, 16, 10) for missing in (1, 4, 5, 40, 64, 65, 1000)] == [1, 1, 2, 10, 16, 16, 16]
    yields.observe(16, 160)
    assert (yields.prompts, yields.rollouts) == pytest.approx((30.4, 217.6))
    assert yields.prompts_for(40, 16, 10) == 6  # 5.6


def test_rounds_are_certain_while_the_batch_lacks_more_than_all_their_rollouts():
    lacking = (0, 1, 12, 13, 24, 30)
    assert [certain_rounds(missing, 3, 4, last=False) for missing in lacking] == [0, 0, 1, 1, 2, 2]
    assert [certain_rounds(missing, 3, 4, last=True) for missing in lacking] == [0, 1, 1, 2, 2, 3]


def collected(session, params, monkeypatch, *, streamed):
    """Two batches in a row: their trunks and prompts, the state after them, and the number of calls of the sampler."""
    if not streamed:
        monkeypatch.setattr(collection, "certain_rounds", lambda *of, last: 1 if last else 0)
    feed, calls = session.prompt_stream(), []
    learner = Learner(session.model.train_programs(session.config), params, None)
    state = TrainingState(learner=learner, prompts=feed, kept_bases=KeptBases(session.config.returns))
    sample = session.sampler.engine.sample
    monkeypatch.setattr(session.sampler.engine, "sample", lambda *of: (calls.append(len(of[1])), sample(*of))[1])
    batches = []
    for state.step in (1, 2):
        batches.append(collect(session, state, Console("none")))
    monkeypatch.undo()
    tokens = [[b.token_ids.tolist() for t in batch.trunks for b in t.branches] for batch in batches]
    prompts = [(group.position, group.kept) for batch in batches for group in batch.groups]
    carried = [[b.token_ids.tolist() for b in t.branches] for t in state.carried]
    return (tokens, prompts, carried, state.yields, feed.state_dict()), calls


@pytest.mark.parametrize("size", ["fixed", "yield"])
def test_rounds_that_a_batch_needs_for_certain_are_one_stream_of_the_same_prompts(
    session, params, tiny_run, monkeypatch, size
):
    settings = {"explore__enabled": False, "rollout__round_size": size, "training__batch_rollouts": 36}
    own = tiny_run.changed(session, **settings)
    with own.grader:
        one_by_one, calls = collected(own, params, monkeypatch, streamed=False)
        found, fewer = collected(own, params, monkeypatch, streamed=True)
    assert found == one_by_one
    assert fewer[0] == 9 and calls[0] == 3, "36 rollouts are three rounds of three prompts, if all train"
    assert sum(fewer) == sum(calls) and len(fewer) < len(calls)


@pytest.mark.parametrize(
    ("settings", "most"),
    [({}, 6), ({"explore__enabled": False, "returns__size": 4, "returns__visits": 2}, 3)],
    ids=["explore: two bases of each prompt", "adaptive return"],
)
def test_rounds_that_keep_caches_or_decide_anew_are_never_one_stream(
    session, params, tiny_run, monkeypatch, settings, most
):
    own = tiny_run.changed(session, training__batch_rollouts=60, **settings)
    with own.grader:
        _, calls = collected(own, params, monkeypatch, streamed=True)
    assert max(calls) <= most
