"""Rounds that a batch needs for certain are sampled as one stream."""

from __future__ import annotations

import pytest

from fr3e_jax.learning.learner import Learner
from fr3e_jax.loop import collection
from fr3e_jax.loop.collection import certain_rounds, collect
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.state import TrainingState
from fr3e_jax.runs.console import Console


def test_rounds_are_certain_while_the_batch_lacks_rollouts_even_if_all_of_theirs_train():
    assert [certain_rounds(missing, 12) for missing in (1, 12, 13, 24, 30)] == [1, 1, 2, 2, 3]


def collected(session, params, monkeypatch, *, streamed):
    """Two batches in a row: their trunks and prompts, the state after them, and the number of calls of the sampler."""
    if not streamed:
        monkeypatch.setattr(collection, "certain_rounds", lambda *of: 1)
    feed, calls = session.prompt_stream(), []
    learner = Learner(session.model.train_programs(session.config), params, None)
    state = TrainingState(learner=learner, prompts=feed, kept_bases=KeptBases(session.config.returns))
    sample = session.sampler.engine.sample
    monkeypatch.setattr(session.sampler.engine, "sample", lambda *of: (calls.append(len(of[1])), sample(*of))[1])
    batches = []
    for state.step in (1, 2):
        batches.append(collect(session, state, Console("none")))
    monkeypatch.undo()
    tokens = [[[b.token_ids.tolist() for b in t.branches] for t in batch.trunks] for batch in batches]
    prompts = [(group.position, group.kept) for batch in batches for group in batch.groups]
    carried = [[b.token_ids.tolist() for b in t.branches] for t in state.carried]
    return (tokens, prompts, carried, feed.state_dict()), calls


def test_rounds_that_a_batch_needs_for_certain_are_one_stream_of_the_same_prompts(
    session, params, tiny_run, monkeypatch
):
    settings = {"explore__enabled": False, "training__batch_rollouts": 36}
    own = tiny_run.changed(session, **settings)
    with own.grader:
        one_by_one, calls = collected(own, params, monkeypatch, streamed=False)
        found, fewer = collected(own, params, monkeypatch, streamed=True)
    assert found == one_by_one
    assert fewer[0] == 9 and calls[0] == 3, "36 rollouts are three rounds of three prompts, if all train"
    assert sum(fewer) == sum(calls) and len(fewer) < len(calls)


ESTIMATORS = """
import numpy as np

def nobody(rewards):
    return np.full(len(rewards), np.nan)

def hard_prompts(rewards):
    return rewards - rewards.mean() if rewards.mean() < 0.5 else np.full(len(rewards), np.nan)
"""


@pytest.mark.parametrize("batch", [12, 24], ids=["one round", "two rounds in one stream"])
def test_an_estimator_may_leave_whole_prompts_out_and_is_told_if_it_leaves_out_all(
    session, params, tiny_run, monkeypatch, tmp_path, batch
):
    (tmp_path / "mine.py").write_text(ESTIMATORS)
    settings = {"explore__enabled": False, "training__batch_rollouts": batch, "rollout__max_rounds_without_signal": 20}

    def estimated_by(name):
        return tiny_run.changed(session, **settings, advantage__base_estimator=f"{tmp_path}/mine.py:{name}")

    own = estimated_by("hard_prompts")
    with own.grader:
        (tokens, prompts, _, _), _ = collected(own, params, monkeypatch, streamed=True)
        assert all(all(trunks) for trunks in tokens), "no trunk without branches"
        assert sum(kept for _, kept in prompts) > sum(map(len, tokens)), (
            "mixed prompts that are often solved were left out"
        )
        with pytest.raises(collection.NoSignal, match="rounds in a row gave nothing"):
            collected(estimated_by("nobody"), params, monkeypatch, streamed=True)


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
