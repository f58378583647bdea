"""Own successes of hard prompts are kept, continued from the depth where half succeed, and left when solved."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from fr3e_jax.data.stream import PromptStream
from fr3e_jax.loop.adaptive_return import Returns, credit_returns
from fr3e_jax.loop.expansion import PromptGroup
from fr3e_jax.loop.explore import explored_trunks, roll_out_states
from fr3e_jax.loop.step_report import rollout_records
from fr3e_jax.rollouts.requests import Rollout


@pytest.fixture
def returning(session, tiny_run):
    return tiny_run.changed(session, returns__size=3, returns__visits=2, returns__rollouts=4, explore__enabled=False)


@pytest.fixture
def stream(session):
    return PromptStream(session.task.problems("train"), 0, session.texts.codec.encode, 8)


def group_of(session, stream, position: int, right: list[bool], lengths=(6, 6, 6, 6)) -> PromptGroup:
    problem = stream.problem_at(position)
    rollouts = []
    for n, length in enumerate(lengths):
        nothing = np.zeros(length, np.float32)
        rollouts.append(Rollout(np.arange(length, dtype=np.int32) + 2 + n, nothing, nothing, nothing, True))
    return PromptGroup(position, problem, session.texts.encode(problem.prompt), rollouts, np.array(right, float))


def filled(returning, stream, positions=(3,), step: int = 1) -> Returns:
    returns = Returns()
    groups = [group_of(returning, stream, p, [False, True, False, False]) for p in positions]
    returns.add(returning.config.returns, step, groups)
    return returns


def answered(anchored, *right: list[int]) -> SimpleNamespace:
    """A visit whose states have these verdicts."""
    rollout = SimpleNamespace(token_ids=[1, 2])
    outcomes = [["right" if one else "wrong" for one in state] for state in right]
    return SimpleNamespace(**vars(anchored), outcomes=outcomes, rollouts=[[rollout] * len(s) for s in right])


def test_the_shortest_success_of_each_hard_prompt_is_kept_and_the_oldest_leave(returning, stream):
    returns = Returns()
    groups = [
        group_of(returning, stream, 0, [False, True, False, False]),
        group_of(returning, stream, 1, [True, True, False, False]),  # easy: half of its rollouts are right
        group_of(returning, stream, 2, [False] * 4),
        group_of(returning, stream, 3, [False, False, False, True], lengths=(6, 6, 6, 1)),  # no depth within
    ]
    returns.add(returning.config.returns, 7, groups)
    returns.add(returning.config.returns, 8, groups)  # the same prompts once more
    assert [(one.position, one.parent, one.depth) for one in returns.kept] == [(0, "7/0/1", 3.0)]
    hard = dataclasses.replace(returning.config.returns, max_success_rate=0.5)
    late = [group_of(returning, stream, p, [True, True, False, False], lengths=(8, 5, 6, 6)) for p in (4, 5, 6)]
    returns.add(hard, 9, late)
    assert [one.parent for one in returns.kept] == ["9/4/1", "9/5/1", "9/6/1"]


def test_continuations_take_the_share_of_tokens_that_fresh_prompts_waste(returning, stream):
    settings, returns = returning.config.returns, Returns()
    rounds = [[False] * 4, [False] * 4, [False, True, False, False], [False, False, True, False]]
    assert not returns.due(settings, 1)
    returns.add(settings, 1, [group_of(returning, stream, p, right) for p, right in enumerate(rounds)])
    assert returns.all_wrong_share == 0.5 and returns.fresh_tokens == 4 * 4 * 6
    assert returns.due(settings, 1)
    returns.returned_tokens = returns.fresh_tokens - 1  # one less than half of all
    assert returns.due(settings, 1)
    returns.returned_tokens += 1
    assert not returns.due(settings, 1)
    assert returns.due(dataclasses.replace(settings, max_share=0.6), 1) is False
    assert not returns.due(dataclasses.replace(settings, max_share=0.6, least_share=0.51), 1)
    returns.all_wrong_share = 1.0
    assert returns.due(dataclasses.replace(settings, max_share=0.6), 1)
    returns.returned_tokens = 0.0
    for one in returns.kept:
        one.visits = settings.visits_per_step
    assert not returns.due(settings, 1) and returns.due(settings, 2), "each success has its visits in every step"


def test_a_visit_moves_a_success_to_the_depth_where_half_of_its_rollouts_succeed(returning, stream):
    returns, settings = filled(returning, stream), returning.config.returns
    (anchored,) = returns.visit(returning, 2, stream)
    assert anchored.forks == [2, 3, 4]
    returns.learn(settings, [answered(anchored, [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0])])
    (kept,) = returns.kept
    assert (kept.depth, kept.spacing) == (3.5, 1.0)  # enclosed: half of 1.5, at least 1
    (anchored,) = returns.visit(returning, 2, stream)
    assert anchored.forks == [2, 4]  # 2.5, 3.5 and 4.5 are rounded to even
    returns.learn(settings, [answered(anchored, *[[1, 1, 1, 1]] * 2)])
    assert (returns.kept[0].depth, returns.kept[0].spacing) == (1.0, 1.5)  # further back, and further apart again
    returns.kept[0].depth = 0.0
    (anchored,) = returns.visit(returning, 3, stream)
    assert anchored.forks[0] == 0
    returns.learn(settings, [answered(anchored, *[[1, 1, 0, 0]] * len(anchored.forks))])
    assert (returns.kept, returns.solved) == ([], 1), "the prompt itself has reached the target"


def test_visits_of_one_step_have_states_and_noise_of_their_own(returning, stream, params, monkeypatch):
    streams, sample = [], returning.sampler.engine.sample

    def noted(params, requests, *callbacks, **named):
        streams.extend(branch.stream for request in requests for branch in request.branches)
        return sample(params, requests, *callbacks, **named)

    monkeypatch.setattr(returning.sampler.engine, "sample", noted)
    returns, records = filled(returning, stream, positions=(0, 1, 2)), []
    visited = []
    for _ in range(3):
        anchored = returns.visit(returning, 5, stream)
        visited += [one.group.position for one in anchored]
        explored = roll_out_states(returning, params, 5, anchored, returning.config.returns.rollouts)
        credited = credit_returns(returning.config, explored)
        records += rollout_records(5, [], credited)
        for one in credited:
            trunks = explored_trunks(returning.config, 5, [one])
            forks = {branch.fork for trunk in trunks for branch in trunk.branches}
            mixed = [fork for fork, row in zip(one.forks, one.rewards, strict=True) if len(set(row)) > 1]
            assert forks == {len(one.group.prompt_ids) + fork for fork in mixed}
            for row, advantages in zip(one.rewards, one.advantages, strict=True):
                spread = row.std() or 1.0
                np.testing.assert_allclose(advantages, (row - row.mean()) / spread, atol=1e-4)
    assert sorted(visited) == [0, 0, 1, 1, 2, 2], "first those with the fewest visits"
    assert returns.visit(returning, 5, stream) == [] and len(streams) == len(set(streams))
    assert len({record.id for record in records}) == len(records) == len(streams)


def test_returns_restored_from_json_equal_the_saved_ones(returning, stream):
    returns = filled(returning, stream, positions=(0, 1))
    returns.visit(returning, 2, stream)
    assert Returns.from_state(json.loads(json.dumps(returns.state_dict()))) == returns


def test_continuations_begin_where_the_policy_chooses(returning, stream):
    returns = filled(returning, stream)
    returns.kept[0].given = [False, False, True, True, False, False]
    (anchored,) = returns.visit(returning, 2, stream)
    assert anchored.forks == [4]  # 2, 3 and 4: a tool wrote the tokens at 2 and 3
