"""First Return: the text that the verifier gets, the prompts that stay, and the base rollouts that are expanded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from encoded_prompts import prepare

from fr3e_jax.data.task import Problem
from fr3e_jax.loop.expansion import PromptGroup
from fr3e_jax.loop.first_return import base_trunks, choose_bases, first_return
from fr3e_jax.loop.step_report import rollout_entries
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rollouts.declared_shapes import declared_shapes
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.verdict import Verdict


def rollout_of(*token_ids: int, finished: bool = True) -> Rollout:
    zeros = np.zeros(len(token_ids), np.float32)
    return Rollout(np.array(token_ids, np.int32), zeros, zeros, zeros, finished)


def group_of(session, rewards, lengths=None, position=0, outcomes=()) -> PromptGroup:
    rollouts = [rollout_of(*[5] * n) for n in lengths or [4] * len(rewards)]
    problem = Problem("p", "1=", "1")
    prompt_ids = session.texts.encode(problem.prompt)
    return PromptGroup(position, problem, prompt_ids, rollouts, np.array(rewards, float), outcomes=list(outcomes))


def drawn_problems(session, count: int):
    problems = session.task.problems("train")
    return [(100 + 3 * i, problems[i]) for i in range(count)]


@pytest.fixture
def recorded(session, tiny_run):
    """The session with a verifier that gives reward 1 to every second response of a prompt and notes what it saw."""
    calls = []

    def verifier(problem, response, finished):
        calls.append((problem.id, response, finished))
        return float(sum(call[0] == problem.id for call in calls) % 2)

    return tiny_run.graded_by(session, tiny_run.in_order(verifier)), calls


def test_every_base_rollout_is_graded_once_on_its_text_without_the_stop_token(recorded, params):
    session, calls = recorded
    problems = drawn_problems(session, 3)
    groups = first_return(session, params, 1, prepare(session.texts, problems))
    assert [(g.position, g.problem) for g in groups] == problems
    seen = Counter(calls)
    finished = 0
    for group in groups:
        assert group.prompt_ids.tolist() == session.texts.codec.encode(group.problem.prompt)
        assert group.rewards.tolist() == [1, 0, 1, 0]
        for rollout in group.rollouts:
            ids = rollout.token_ids[:-1] if rollout.finished else rollout.token_ids
            assert rollout.finished == (rollout.token_ids[-1] == session.texts.codec.stop_ids[0])
            text = session.texts.codec.decode(ids, special_tokens=True)
            assert seen[group.problem.id, text, rollout.finished] >= 1
            finished += rollout.finished
    assert sum(seen.values()) == 12 and 0 < finished < 12


def test_without_exploration_base_rollouts_are_the_same_and_lanes_keep_no_hidden_states(
    recorded, params, tiny_run, monkeypatch
):
    session, _ = recorded
    kept, make = [], session.sampler.engine.programs.empty_state
    noting = lambda *args, **options: kept.append(options["promotable"]) or make(*args, **options)
    monkeypatch.setattr(session.sampler.engine.programs, "empty_state", noting)
    prompts = prepare(session.texts, drawn_problems(session, 3))
    results = []
    for enabled in (True, False):
        changed = tiny_run.changed(session, explore__enabled=enabled)
        monkeypatch.setattr(session.sampler.engine, "shapes", declared_shapes(changed.config))
        results.append(first_return(changed, params, 1, prompts))
    assert kept == [True, False]
    explored, plain = results
    for ours, theirs in zip(plain, explored, strict=True):
        assert (ours.kept, ours.rewards.tolist(), ours.chosen) == (theirs.kept, theirs.rewards.tolist(), [])
        for left, right in zip(ours.rollouts, theirs.rollouts, strict=True):
            np.testing.assert_array_equal(left.token_ids, right.token_ids)


def test_special_tokens_inside_a_response_stay_visible(session, tiny_run):
    calls = []
    session = tiny_run.graded_by(session, Grader(lambda p, r, f: calls.append(r) or 1.0))
    problem, nothing = Problem("p", "1=", "1"), np.zeros(0, np.int32)
    pad, stop = session.texts.codec.pad_id, session.texts.codec.stop_ids[0]
    session.grader.submit(problem, nothing, rollout_of(4, pad, 5, stop))
    session.grader.submit(problem, np.array([6, 7], np.int32), rollout_of(4, stop))
    session.grader.submit(problem, nothing, rollout_of(4, 5, finished=False))
    session.grader.submit(problem, nothing, rollout_of(stop))
    assert calls == ["2<pad>3", "452", "23", ""]


def test_prompts_with_equal_rewards_are_rejected_by_default(session, params, tiny_run):
    rewards = {"train/0": [1, 1, 1, 1], "train/1": [0, 0, 0, 0], "train/2": [0, 0, 1, 0]}
    script = {name: list(values) for name, values in rewards.items()}

    def verifier(problem, response, finished):
        return float(script[problem.id].pop(0))

    def graded(**settings):
        script.update({name: list(values) for name, values in rewards.items()})
        twin = tiny_run.changed(session, explore__max_correct=4, explore__max_wrong=4, **settings)
        twin = tiny_run.graded_by(twin, tiny_run.in_order(verifier))
        return first_return(twin, params, 1, prepare(twin.texts, drawn_problems(twin, 3)))

    groups = graded()
    assert [group.kept for group in groups] == [False, False, True]
    assert [bool(group.chosen) for group in groups] == [False, False, True]
    assert [group.kept for group in graded(rollout__reject_degenerate=False)] == [True, True, True]


def test_the_trunks_of_chosen_bases_and_no_others_are_kept(recorded, params):
    session, _ = recorded
    groups = first_return(session, params, 2, prepare(session.texts, drawn_problems(session, 3)))
    for group in groups:
        assert sorted(group.trunks) == group.chosen and len(group.chosen) == 2
        for base, trunk in group.trunks.items():
            whole = np.concatenate([group.prompt_ids, group.rollouts[base].token_ids])
            np.testing.assert_array_equal(trunk.token_ids, whole)


def test_at_most_max_correct_and_max_wrong_bases_are_chosen(session, tiny_run):
    rewards = [1, 0, 1, 0, 1, 0, 1, 0]

    def counts(correct, wrong):
        twin = tiny_run.changed(session, explore__max_correct=correct, explore__max_wrong=wrong)
        chosen = choose_bases(twin.config.explore, twin.noise, 1, group_of(session, rewards))
        assert chosen == sorted(set(chosen))
        return sum(rewards[n] for n in chosen), sum(1 - rewards[n] for n in chosen)

    assert counts(1, 1) == (1, 1)
    assert counts(3, 0) == (3, 0)
    assert counts(0, 2) == (0, 2)
    assert counts(9, 9) == (4, 4)


def test_the_choice_is_random_and_reproduced_by_seed_step_and_prompt(session, tiny_run):
    rewards = [1] * 4 + [0] * 4

    def choices(seed, step_of=lambda i: i, position_of=lambda i: 0):
        twin = tiny_run.changed(session, seed=seed)
        groups = [group_of(session, rewards, position=position_of(i)) for i in range(60)]
        return [
            tuple(choose_bases(twin.config.explore, twin.noise, step_of(i), group)) for i, group in enumerate(groups)
        ]

    assert choices(0) == choices(0)
    assert choices(0) != choices(1)
    for names in ((lambda i: i, lambda i: 0), (lambda i: 0, lambda i: i)):
        assert len(set(choices(0, *names))) > 8, "every step and every prompt draws anew"
    for half in (0, 1):
        taken = Counter(choice[half] for choice in choices(0))
        assert set(taken) == set(range(4 * half, 4 * half + 4)), "some base is never chosen"
        assert max(taken.values()) < 30, "one base is preferred"


def test_responses_of_one_token_are_passed_over(session, tiny_run):
    twin = tiny_run.changed(session, explore__max_correct=4, explore__max_wrong=4)
    group = group_of(session, [1, 0, 1, 0], lengths=[1, 1, 2, 4])
    assert choose_bases(twin.config.explore, twin.noise, 1, group) == [2, 3]
    assert choose_bases(twin.config.explore, twin.noise, 1, group_of(session, [1, 0], lengths=[1, 1])) == []


def test_without_explore_no_base_is_chosen(session, tiny_run):
    off = tiny_run.changed(session, explore__enabled=False)
    assert choose_bases(off.config.explore, off.noise, 1, group_of(session, [1, 0, 0, 0])) == []


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("grpo", [3**0.5] + [-(3**-0.5)] * 3), ("rloo", [1] + [-1 / 3] * 3), ("mean", [0.75] + [-0.25] * 3)],
)
def test_base_rollouts_train_as_a_group_of_their_prompt(session, tiny_run, estimator, expected):
    twin = tiny_run.changed(session, advantage__base_estimator=estimator)
    groups = [group_of(session, [1, 0, 0, 0], lengths=[3, 1, 2, 2]), group_of(session, [0, 0, 0, 1])]
    trunks = base_trunks(twin.config, 5, groups)
    assert [trunk.step for trunk in trunks] == [5, 5]
    for group, trunk, wanted in zip(groups, trunks, (expected, expected[::-1]), strict=True):
        np.testing.assert_array_equal(trunk.token_ids, group.prompt_ids)
        np.testing.assert_allclose(group.advantages, wanted, atol=2e-5)
        for branch, rollout, advantage in zip(trunk.branches, group.rollouts, wanted, strict=True):
            assert branch.fork == len(group.prompt_ids)
            assert branch.token_ids is rollout.token_ids and branch.sampler_logprobs is rollout.logprobs
            np.testing.assert_allclose(branch.advantages, [advantage] * len(rollout.token_ids), atol=2e-5)
    assert base_trunks(twin.config, 5, []) == []


def test_bases_are_drawn_at_random(session, tiny_run):
    twin = tiny_run.changed(session, explore__max_correct=1, explore__max_wrong=2)
    group = group_of(session, [1, 1, 1, 0, 0, 0], lengths=[2, 4, 9, 3, 3, 6])
    found = [choose_bases(twin.config.explore, twin.noise, step, group) for step in range(12)]
    assert len(set(map(tuple, found))) > 3


def test_an_estimator_of_the_users_own_leaves_rollouts_out(session, tiny_run):
    """It sees what each rollout is, and the shorter half alone trains."""
    name = "fr3e_jax.objectives.example_objectives:shortest_half"
    twin = tiny_run.changed(session, explore__enabled=False, advantage__base_estimator=name)
    group = group_of(session, [1, 0, 1, 0], lengths=[8, 2, 3, 9])
    (trunk,) = base_trunks(twin.config, 1, [group])
    assert [len(branch.token_ids) for branch in trunk.branches] == [2, 3]
    np.testing.assert_allclose([branch.advantages[0] for branch in trunk.branches], [-1, 1], rtol=1e-5)
    assert [group.trains(n) for n in range(4)] == [False, True, True, False]


def test_base_trunks_take_the_advantages_of_their_estimator(session, tiny_run):
    def advantages(**settings):
        twin = tiny_run.changed(session, **{f"advantage__{name}": value for name, value in settings.items()})
        group = group_of(session, [1, 0, 0, 0])
        (trunk,) = base_trunks(twin.config, 1, [group])
        assert group.rewards.tolist() == [1, 0, 0, 0], "metrics and success rates read what was graded"
        return [float(branch.advantages[0]) for branch in trunk.branches]

    assert advantages(base_estimator="reward") == [1, 0, 0, 0]
    assert advantages(base_estimator="reward", reward_range="minus_one_one") == [1, -1, -1, -1]
    assert advantages(base_estimator="mean", reward_range="minus_one_one") == [1.5, -0.5, -0.5, -0.5]
    for reward_range in ("zero_one", "minus_one_one"):  # half of the pairs succeed: 1/2 over 1/2, and 1/2 - 2/3
        found = advantages(base_estimator="pass_at_k", pass_at_k=2, reward_range=reward_range)
        np.testing.assert_allclose(found, [1, -1 / 3, -1 / 3, -1 / 3], atol=1e-6)


GRADED = [Verdict(0.6, "right"), Verdict(0.9, "wrong"), Verdict(0.3, "wrong"), Verdict(0.0, "no_answer")]
"""Of a verifier with graded rewards: it accepts the first response, and the best reward is a wrong one's."""


def test_pass_at_k_counts_right_answers_within_the_overlong_margin(session, tiny_run):
    """The penalty takes 0.5 from the reward of each response; half of the pairs still succeed."""
    twin = tiny_run.changed(
        session, advantage__base_estimator="pass_at_k", advantage__pass_at_k=2, advantage__overlong_margin=4
    )
    (trunk,) = base_trunks(twin.config, 1, [group_of(session, [1, 0, 0, 0], lengths=[8, 8, 8, 8])])
    assert [branch.reward for branch in trunk.branches] == [0.5, -0.5, -0.5, -0.5]
    assert [branch.right for branch in trunk.branches] == [True, False, False, False]
    found = [float(branch.advantages[0]) for branch in trunk.branches]
    np.testing.assert_allclose(found, [1, -1 / 3, -1 / 3, -1 / 3], atol=1e-6)


def test_the_verifiers_outcome_says_what_is_right_and_baselines_read_the_reward(session, tiny_run):
    rewards, outcomes = [v.reward for v in GRADED], [v.outcome for v in GRADED]
    group = group_of(session, rewards, outcomes=outcomes)
    assert group.right.tolist() == [True, False, False, False] and group.success_rate == 0.25
    twin = tiny_run.changed(session, explore__max_correct=4, explore__max_wrong=0)
    assert choose_bases(twin.config.explore, twin.noise, 1, group) == [0]
    found = {}
    for estimator in ("mean", "pass_at_k"):
        twin = tiny_run.changed(session, advantage__base_estimator=estimator, advantage__pass_at_k=2)
        base_trunks(twin.config, 1, [group])
        found[estimator] = group.advantages.tolist()
    np.testing.assert_allclose(found["mean"], np.subtract(rewards, 0.45), atol=1e-6)
    np.testing.assert_allclose(found["pass_at_k"], [1, -1 / 3, -1 / 3, -1 / 3], atol=1e-6)


@pytest.mark.parametrize("estimator", ["grpo", "pass_at_k"])
def test_graded_rewards_without_a_right_answer_train_every_estimator_but_pass_at_k(
    session, params, tiny_run, estimator
):
    twin = tiny_run.changed(session, explore__enabled=False, advantage__base_estimator=estimator)
    script = [Verdict(0.6, "wrong"), *GRADED[1:], *GRADED]
    twin = tiny_run.graded_by(twin, tiny_run.in_order(lambda *case: script.pop(0)))
    groups = first_return(twin, params, 1, prepare(twin.texts, drawn_problems(twin, 2)))
    assert [group.kept for group in groups] == [estimator == "grpo", True]
    assert groups[1].outcomes == [verdict.outcome for verdict in GRADED]


@pytest.mark.parametrize(("rounds", "drawn"), [(1, [4, 4, 4]), (2, [8, 4, 8]), (3, [12, 4, 8])])
def test_prompts_without_enough_of_both_kinds_are_sampled_again_and_a_balanced_part_trains(
    session, params, tiny_run, rounds, drawn
):
    """Reinforce-Ada with N = 4: the first prompt never has two successes, the second one has at once."""
    rewards = {
        "train/0": [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        "train/1": [1, 0, 1, 0],
        "train/2": [1, 1, 1, 1, 0, 1, 0, 0],
    }
    script = {name: list(values) for name, values in rewards.items()}
    own = tiny_run.changed(session, explore__enabled=False, rollout__sampling_rounds=rounds)
    own = tiny_run.graded_by(own, tiny_run.in_order(lambda problem, *_: float(script[problem.id].pop(0))))
    groups = first_return(own, params, 1, prepare(own.texts, drawn_problems(own, 3)))
    assert [len(group.rollouts) for group in groups] == drawn
    assert [group.kept for group in groups] == [rounds > 1, True, rounds > 1]
    if rounds == 1:
        return
    assert [group.trained for group in groups] == [[0, 1, 2, 6], [0, 1, 2, 3], [0, 1, 4, 6]]
    tokens = [rollout.token_ids.tolist() for rollout in groups[0].rollouts]
    assert tokens[4:8] != tokens[:4], "later rounds have noise of their own"
    trunks = base_trunks(own.config, 1, groups)
    for group, trunk in zip(groups, trunks, strict=True):
        wanted = (group.rewards - group.rewards.mean()) / (group.rewards.std() + 1e-6)  # of all that were drawn
        np.testing.assert_allclose(group.advantages, wanted, atol=1e-5)
        chosen = [group.rollouts[n].token_ids for n in group.trained]
        assert all(branch.token_ids is ids for branch, ids in zip(trunk.branches, chosen, strict=True))
        np.testing.assert_allclose(
            [branch.advantages[0] for branch in trunk.branches], wanted[group.trained], atol=1e-5
        )
    entries = [entry for entry in rollout_entries(1, groups, []) if entry.fields["prompt_position"] == 100]
    assert [n for n, entry in enumerate(entries) if entry.fields["advantage"] is not None] == [0, 1, 2, 6]
