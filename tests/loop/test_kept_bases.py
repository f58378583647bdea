"""Own successes of hard prompts are kept, continued from depths within them, and left when solved."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from fr3e_jax.data.stream import PromptStream
from fr3e_jax.loop.expansion import Anchored, PromptGroup
from fr3e_jax.loop.explore import explored_trunks, roll_out_states
from fr3e_jax.loop.kept_bases import LEAST_SHARE, VISITS_PER_ROUND, KeptBases, credit_visits
from fr3e_jax.loop.rollout_entries import records_of
from fr3e_jax.loop.run_report import no_signal_message
from fr3e_jax.loop.step_report import rollout_entries
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


def with_settings(kept_bases: KeptBases, **settings) -> KeptBases:
    return dataclasses.replace(kept_bases, settings=dataclasses.replace(kept_bases.settings, **settings))


def filled(returning, stream, positions=(3,), step: int = 1) -> KeptBases:
    kept_bases = KeptBases(returning.config.returns)
    kept_bases.add(step, [group_of(returning, stream, p, [False, True, False, False]) for p in positions])
    return kept_bases


def visit(kept_bases: KeptBases, session, step: int, stream):
    return kept_bases.visit(step, stream, session.texts, session.noise)


def answered(anchored, *right: list[int]) -> SimpleNamespace:
    """A visit whose states have these verdicts."""
    rollout = SimpleNamespace(token_ids=[1, 2])
    outcomes = [["right" if one else "wrong" for one in state] for state in right]
    return SimpleNamespace(**vars(anchored), outcomes=outcomes, rollouts=[[rollout] * len(s) for s in right])


@pytest.fixture
def streams(returning, monkeypatch) -> list[tuple[int, ...]]:
    """The names of the noise of all branches that are sampled."""
    names, sample = [], returning.sampler.engine.sample

    def noted(params, requests, *callbacks, **named):
        names.extend(branch.stream for request in requests for branch in request.branches)
        return sample(params, requests, *callbacks, **named)

    monkeypatch.setattr(returning.sampler.engine, "sample", noted)
    return names


def test_rounds_of_returns_alone_may_end_without_signal(returning):
    message = no_signal_message(returning.config, [], [], 3)
    assert message.startswith("3 rounds in a row, all of returns to kept successes, gave nothing to train on")
    assert "Raise returns.rollouts (now 4)" in message


def test_a_base_that_is_explored_and_visited_in_one_step_has_noise_of_its_own(
    returning, params, stream, streams, tiny_run
):
    own = tiny_run.changed(returning, explore__enabled=True)
    group = group_of(own, stream, 3, [False, True, False, False])
    group.trunks[1] = np.concatenate([group.prompt_ids, group.rollouts[1].token_ids])
    explored = Anchored(group=group, base=1, anchors=[2, 4], states=[1, 2], forks=[2, 4])
    roll_out_states(own, params, 1, [explored])
    kept_bases = filled(own, stream, step=1)
    roll_out_states(own, params, 1, kept_bases.visit(1, stream, own.texts, own.noise), 4)
    assert len(set(streams)) == len(streams) > 12


def test_the_shortest_success_of_each_hard_prompt_is_kept_and_the_oldest_leave(returning, stream):
    kept_bases = KeptBases(returning.config.returns)
    groups = [
        group_of(returning, stream, 0, [False, True, False, False]),
        group_of(returning, stream, 1, [True, True, False, False]),  # easy: half of its rollouts are right
        group_of(returning, stream, 2, [False] * 4),
        group_of(returning, stream, 3, [False, False, False, True], lengths=(6, 6, 6, 1)),  # no depth within
    ]
    kept_bases.add(7, groups)
    kept_bases.add(8, groups)  # the same prompts once more
    assert [(base.position, base.parent, base.depth) for base in kept_bases.bases] == [(0, "7/0/1", 3.0)]
    late = [group_of(returning, stream, p, [True, True, False, False], lengths=(8, 5, 6, 6)) for p in (4, 5, 6)]
    kept_bases = with_settings(kept_bases, max_success_rate=0.5)
    kept_bases.add(9, late)
    assert [base.parent for base in kept_bases.bases] == ["9/4/1", "9/5/1", "9/6/1"]


def test_a_success_is_a_verdict_and_no_reward(returning, stream):
    """Rewards are graded: the second response is accepted for 0.7, and the third is wrong with 1."""
    group = group_of(returning, stream, 3, [0, 0.7, 1, 0.2])
    group.outcomes = ["wrong", "right", "wrong", "no_answer"]
    kept_bases = KeptBases(returning.config.returns)
    kept_bases.add(1, [group])
    (base,) = kept_bases.bases
    assert (base.parent, base.success_rate, kept_bases.wasted_share) == ("1/3/1", 0.25, 0.0)


def test_continuations_take_the_share_of_tokens_that_fresh_prompts_waste(returning, stream):
    kept_bases = KeptBases(returning.config.returns)
    rounds = [[False] * 4, [False] * 4, [False, True, False, False], [False, False, True, False]]
    assert not kept_bases.due()
    kept_bases.add(1, [group_of(returning, stream, p, right) for p, right in enumerate(rounds)])
    assert kept_bases.wasted_share == 0.5 and kept_bases.fresh_tokens == 4 * 4 * 6
    assert kept_bases.due()
    kept_bases.returned_tokens = kept_bases.fresh_tokens - 1  # one less than half of all
    assert kept_bases.due()
    kept_bases.returned_tokens += 1
    assert not kept_bases.due()
    assert with_settings(kept_bases, max_share=0.6).due() is False
    kept_bases.wasted_share = 1.0
    assert with_settings(kept_bases, max_share=0.6).due()
    assert not with_settings(kept_bases, max_share=0.6, size=0).due(), "a resume may turn returns off"
    kept_bases.returned_tokens = 0.0
    kept_bases.wasted_share = LEAST_SHARE - 0.01
    assert not kept_bases.due(), "plain rollouts do while few prompts are hard"
    kept_bases.wasted_share = LEAST_SHARE
    assert kept_bases.due()
    for base in kept_bases.bases:
        base.recent_visits = VISITS_PER_ROUND
    assert not kept_bases.due()
    kept_bases.add(2, [group_of(returning, stream, 0, rounds[0])])
    assert kept_bases.due(), "each success has its visits for every round of fresh prompts"


def test_the_share_of_all_wrong_prompts_forgets_with_every_round_of_samples(returning, stream):
    kept_bases = KeptBases(returning.config.returns)
    kept_bases.add(1, [group_of(returning, stream, 0, [False] * 4)], sampling_rounds=4)
    assert kept_bases.wasted_share == 1.0  # the first round decides alone
    for rounds, share in ((1, 0.9), (2, 0.9**3)):
        kept_bases.add(2, [group_of(returning, stream, 1, [True, False, False, False])], sampling_rounds=rounds)
        assert kept_bases.wasted_share == pytest.approx(share)


def test_a_visit_moves_a_success_to_the_depth_where_half_of_its_rollouts_succeed(returning, stream):
    kept_bases = filled(returning, stream)
    (anchored,) = visit(kept_bases, returning, 2, stream)
    assert anchored.forks == [2, 3, 4]
    kept_bases.learn([answered(anchored, [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0])])
    (base,) = kept_bases.bases
    assert (base.depth, base.spacing) == (3.5, 1.0)  # bracketed: half of 1.5, at least 1
    (anchored,) = visit(kept_bases, returning, 2, stream)
    assert anchored.forks == [2, 4]  # 2.5, 3.5 and 4.5 are rounded to even
    kept_bases.learn([answered(anchored, *[[1, 1, 1, 1]] * 2)])
    assert (base.depth, base.spacing) == (1.0, 1.5)  # further back, and further apart again
    base.depth = 0.0
    kept_bases.add(3, [])
    (anchored,) = visit(kept_bases, returning, 3, stream)
    assert anchored.forks[0] == 0
    kept_bases.learn([answered(anchored, *[[1, 1, 0, 0]] * len(anchored.forks))])
    assert (kept_bases.bases, kept_bases.solved) == ([], 1), "the prompt itself has reached the target"


def test_a_failure_of_an_easy_prompt_is_continued_where_half_of_its_rollouts_fail(returning, stream):
    easy, hard = [True, True, False, True], [False, True, False, False]
    groups = [group_of(returning, stream, p, right) for p, right in enumerate([[True] * 4, easy, hard])]
    kept_bases = KeptBases(returning.config.returns)
    kept_bases.add(1, groups)
    assert [base.parent for base in kept_bases.bases] == ["1/2/1"] and kept_bases.wasted_share == 0
    kept_bases = with_settings(KeptBases(returning.config.returns), failures=True)
    kept_bases.add(1, groups)
    assert [(base.parent, base.right) for base in kept_bases.bases] == [("1/1/2", False), ("1/2/1", True)]
    assert kept_bases.wasted_share == 1 / 3  # all right is no signal, either
    failed, solved = visit(kept_bases, returning, 2, stream)
    assert (failed.group.outcomes, solved.group.outcomes) == (["wrong"], ["right"]) and failed.forks == solved.forks
    verdicts = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]])
    kept_bases.learn([answered(failed, *(1 - verdicts)), answered(solved, *verdicts)])
    assert [(base.depth, base.spacing) for base in kept_bases.bases] == [(3.5, 1.0)] * 2  # mirrored
    kept_bases.bases[0].depth = 0.0
    failed, _ = visit(kept_bases, returning, 3, stream)
    kept_bases.learn([answered(failed, *[[0, 0, 1, 1]] * len(failed.forks))])
    assert [base.parent for base in kept_bases.bases] == ["1/2/1"], "the prompt itself fails as often as it should"


@pytest.mark.parametrize("right", [0, 1])
def test_by_the_fixed_rule_the_depths_of_a_success_never_change(returning, stream, right):
    kept_bases = with_settings(filled(returning, stream), depth_rule="fixed")
    for step in (2, 3):
        (anchored,) = visit(kept_bases, returning, step, stream)
        assert anchored.forks == [2, 3, 4]  # 1.5, 3 and 4.5 of six tokens
        kept_bases.learn([answered(anchored, *[[right] * 4] * 3)])
    assert (len(kept_bases.bases), kept_bases.solved) == (1, 0), (
        "no depth is the bare prompt, so none tells that it is solved"
    )


def test_states_of_a_visit_are_those_of_the_base_under_the_current_weights(returning, stream, params, tiny_run):
    session = tiny_run.changed(returning, explore__enabled=True)
    group, kept_bases = group_of(session, stream, 3, [False, True, False, False]), KeptBases(session.config.returns)
    kept_bases.add(1, [group])
    anchored = visit(kept_bases, session, 2, stream)
    session.sampler.engine.take_counts()
    (visited,) = roll_out_states(session, params, 2, anchored, rollouts=4)
    prompt, base = visited.group.prompt_ids, visited.rollout.token_ids
    assert session.sampler.engine.take_counts().prefill_positions == len(prompt) + len(base)
    logprobs = tiny_run.log_softmax(tiny_run.full_logits(session, params, [*prompt, *base]))
    entropies = -(np.exp(logprobs) * logprobs).sum(axis=1)
    assert visited.forks == [2, 3, 4]
    for fork, state in zip(visited.forks, visited.rollouts, strict=True):
        for rollout in state:
            assert rollout.entropies[0] == pytest.approx(entropies[len(prompt) + fork - 1], abs=1e-5)
            assert fork + len(rollout.token_ids) <= 10
    rewards = [np.array([1.0, 0, 0, 0])] * len(visited.states)
    credited = credit_visits([dataclasses.replace(visited, rewards=rewards)], session.config.advantage)
    (trunk,) = explored_trunks(session.config.explore, 2, credited)
    assert len(trunk.branches) == 4 * len(visited.states), "the base itself is of older weights"


def test_visits_of_one_step_have_states_and_noise_of_their_own(returning, stream, params, streams):
    kept_bases, records, visited = filled(returning, stream, positions=(0, 1, 2)), [], []
    for _ in range(3):
        anchored = visit(kept_bases, returning, 5, stream)
        visited += [one.group.position for one in anchored]
        explored = roll_out_states(returning, params, 5, anchored, returning.config.returns.rollouts)
        credited = credit_visits(explored, returning.config.advantage)
        records += records_of(rollout_entries(5, [], credited))
        for one in credited:
            trunks = explored_trunks(returning.config.explore, 5, [one])
            forks = {branch.fork for trunk in trunks for branch in trunk.branches}
            mixed = [fork for fork, row in zip(one.forks, one.rewards, strict=True) if len(set(row)) > 1]
            assert forks == {len(one.group.prompt_ids) + fork for fork in mixed}
            for row, advantages in zip(one.rewards, one.advantages, strict=True):
                spread = row.std() or 1.0
                np.testing.assert_allclose(advantages, (row - row.mean()) / spread, atol=1e-4)
    assert sorted(visited) == [0, 0, 1, 1, 2, 2], "first those with the fewest visits"
    assert visit(kept_bases, returning, 5, stream) == [] and len(streams) == len(set(streams))
    assert len({record.id for record in records}) == len(records) == len(streams)
    assert {record.parent for record in records} == {"1/0/1", "1/1/1", "1/2/1"}
    kept_bases.add(5, [])  # a round of fresh prompts
    later = {(one.group.position, state) for one in visit(kept_bases, returning, 5, stream) for state in one.states}
    assert later and not later & {(record.prompt_position, record.state) for record in records}


def test_kept_bases_restored_from_json_equal_the_saved_ones(returning, stream):
    kept_bases = filled(returning, stream, positions=(0, 1))
    visit(kept_bases, returning, 2, stream)
    restored = KeptBases(returning.config.returns)
    restored.load_state_dict(json.loads(json.dumps(kept_bases.state_dict())))
    assert restored == kept_bases


def test_continuations_begin_where_the_policy_chooses(returning, stream):
    kept_bases = filled(returning, stream)
    kept_bases.bases[0].tool_written = [False, False, True, True, False, False]
    (anchored,) = visit(kept_bases, returning, 2, stream)
    assert anchored.forks == [4]  # 2, 3 and 4: a tool wrote the tokens at 2 and 3
    assert anchored.rollout.sampled.tolist() == [True, True, False, False, True, True]
