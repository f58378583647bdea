"""Own successes train once more: which are stored, when their prompts are asked again, and in what group they train."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from encoded_prompts import prepare

from fr3e_jax.configuration import load_config
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.learning.scoring import gap_metrics
from fr3e_jax.loop.expansion import PromptGroup
from fr3e_jax.loop.first_return import base_trunks, first_return
from fr3e_jax.loop.replay import MOST_SUCCESSES, Replay
from fr3e_jax.rollouts.requests import Rollout


@pytest.fixture
def stream(session):
    return PromptStream(session.task.problems("train"), 0, session.texts.codec.encode, 8)


def group_of(session, stream, position: int, right: list[int], mark: int = 0) -> PromptGroup:
    problem = stream.problem_at(position)
    rollouts = []
    for n in range(len(right)):
        figures = [np.full(3, -(0.1 + n + mark), np.float32) for _ in range(3)]
        rollouts.append(Rollout(np.array([2 + n, 3, 4], np.int32), *figures, True))
    return PromptGroup(position, problem, session.texts.encode(problem.prompt), rollouts, np.array(right, float))


def positions(replay: Replay, session, stream, step: int, count: int) -> list[int]:
    return [prompt.position for prompt in replay.prompts(step, count, stream, session.texts, session.noise)]


def test_the_latest_success_of_a_mixed_prompt_is_stored_until_the_prompt_is_solved(session, stream):
    replay = Replay(0.5)
    rewards = {0: [0, 1, 1, 0], 1: [0, 0, 0, 0], 2: [1, 1, 1, 1], 3: [0, 0, 0, 1]}
    replay.observe(1, [group_of(session, stream, *each) for each in rewards.items()])
    logprobs = lambda: {p: round(float(s.response.sampler_logprobs[0]), 1) for p, s in replay.successes.items()}
    assert logprobs() == {0: -1.1, 3: -3.1}
    replay.observe(2, [group_of(session, stream, 0, [0] * 4, 5), group_of(session, stream, 3, [0, 1, 0, 0], 5)])
    assert logprobs() == {0: -1.1, 3: -6.1}, "an old success stays until there is a new one"
    replay.observe(3, [group_of(session, stream, 3, [1] * 4)])
    assert list(replay.successes) == [0]
    replay.observe(3, [])
    Replay().observe(1, [group_of(session, stream, 0, [1, 0])])
    many = [group_of(session, stream, position, [1, 0]) for position in range(MOST_SUCCESSES + 1)]
    replay.observe(4, many[:600])
    assert replay.successes.keys() == {*range(600)}, "none leaves while there is room"
    replay.observe(4, many[600:])
    assert len(replay.successes) == MOST_SUCCESSES and 0 not in replay.successes, "the oldest leaves"


def test_a_share_of_the_prompts_is_asked_again_at_most_once_in_a_step(session, stream):
    replay = Replay(0.5)
    replay.observe(1, [group_of(session, stream, p, [0, 1]) for p in (3, 5, 8)])
    assert positions(replay, session, stream, 1, 8) == [], "they were asked in this step"
    assert positions(replay, session, stream, 2, 8) == [3, 5, 8]
    drawn = positions(replay, session, stream, 2, 5)
    assert len(drawn) == 2 and drawn == positions(replay, session, stream, 2, 5), "keyed by step and stream"
    replay.observe(2, [group_of(session, stream, drawn[0], [0, 0])])
    assert drawn[0] not in positions(replay, session, stream, 2, 8)
    assert positions(Replay(), session, stream, 2, 8) == positions(replay, session, stream, 2, 1) == []


def test_an_earlier_success_trains_in_the_fresh_group_with_the_log_probs_it_was_sampled_with(
    session, params, stream, tiny_run
):
    replay, step = Replay(0.5), 2
    replay.observe(1, [group_of(session, stream, 3, [0, 1, 0, 0])])
    own = tiny_run.changed(session, explore__enabled=False, rollout__replay_share=0.5)
    own = tiny_run.graded_by(own, tiny_run.in_order(lambda problem, *_: float(problem.id == fresh.problem.id)))
    prompts = replay.prompts(step, 2, stream, own.texts, own.noise)
    (fresh,) = prepare(own.texts, [(40, stream.problem_at(4))])
    groups = first_return(own, params, step, [*prompts, fresh], replay.successes_of([*prompts, fresh]))
    assert [len(group.rollouts) for group in groups] == [3, 4], "the success takes the place of one of four"
    assert [group.kept for group in groups] == [True, False], "All-Wrong fresh rollouts beside a success are a signal"
    assert groups[0].success_rate == 0, "what is replayed says nothing of the policy"
    (trunk,) = base_trunks(own.config, step, groups[:1])
    np.testing.assert_array_equal(trunk.token_ids, session.texts.encode(stream.problem_at(3).prompt))
    advantages = np.stack([branch.advantages[0] for branch in trunk.branches])
    np.testing.assert_allclose(advantages, [-(3**-0.5)] * 3 + [3**0.5], atol=1e-5)
    np.testing.assert_allclose(groups[0].advantages, advantages[:3])
    last = trunk.branches[-1]
    assert (last.token_ids.tolist(), last.right, last.finished) == ([3, 3, 4], True, True)
    np.testing.assert_allclose(last.sampler_logprobs, -1.1)
    trainer = [[branch.sampler_logprobs + (branch.step is not None) for branch in trunk.branches]]
    gap = gap_metrics(own.config.loss, [trunk], trainer, step)
    assert gap["logprob_gap/max"] == gap["sampler_ratio/fresh"] == 0, "a replayed success is not fresh"
    assert gap["sampler_ratio/carried"] == pytest.approx(1)
    assert last.advantages.shape == (3,) and not replay.successes[3].response.advantages.any()
    lone, _ = (group_of(session, stream, 3, [0]), group_of(session, stream, 3, [1]))
    lone.replayed = replay.successes[3].response
    mixed = base_trunks(own.config, step, [lone, group_of(session, stream, 5, [1, 0, 0, 0])])
    found = [[round(float(branch.advantages[0]), 3) for branch in trunk.branches] for trunk in mixed]
    assert found == [[-1.0, 1.0], [1.732, -0.577, -0.577, -0.577]], "groups of several sizes"
    name = "fr3e_jax.objectives.example_objectives:shortest_half"  # NaN for the longer half
    short = tiny_run.changed(own, advantage__base_estimator=name)
    groups[0].replayed = dataclasses.replace(last, token_ids=np.arange(2, 22, dtype=np.int32))
    (trunk,) = base_trunks(short.config, step, groups[:1])
    assert all(np.isfinite(branch.advantages).all() and len(branch.token_ids) < 20 for branch in trunk.branches)


def test_stored_successes_survive_a_checkpoint(session, stream):
    replay = Replay(0.5, asked=7)
    replay.observe(1, [group_of(session, stream, p, [0, 1]) for p in (8, 3)])
    restored = Replay(0.5)
    restored.load_state_dict(json.loads(json.dumps(replay.state_dict())))
    assert json.dumps(restored.state_dict()) == json.dumps(replay.state_dict())
    assert list(restored.successes) == [8, 3] and restored.asked == 7


def test_replay_turns_importance_weights_on_unless_a_recipe_sets_their_cap(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("explore: {enabled: false}\n")
    cap = lambda *settings: load_config(path, settings).loss.importance_cap
    assert cap() == 0 and cap("rollout.replay_share=0.5") == 2
    assert cap("rollout.replay_share=0.5", "loss.importance_cap=0") == 0  # as RLEP does
