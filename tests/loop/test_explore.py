"""Explore: anchors belong to their own base, states fork where they should, rewards see the whole response."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from encoded_prompts import prepare

from fr3e_jax.data.task import Problem
from fr3e_jax.loop.expansion import Credited, Explored, PromptGroup, anchored_at
from fr3e_jax.loop.explore import (
    anchor_rules,
    assign_advantages,
    explored_trunks,
    place_anchors,
    roll_out_states,
)
from fr3e_jax.loop.first_return import first_return
from fr3e_jax.loop.step_report import rollout_metrics
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rollouts.requests import Rollout

STEP, CAP, M = 4, 10, 3


def explored(session, params, tiny_run, grader=None, **settings) -> SimpleNamespace:
    """Base rollouts of four prompts, and the rollouts from all their states."""
    defaults = {"explore__max_correct": 4, "explore__max_wrong": 4}
    session = tiny_run.changed(session, **defaults | settings)
    session = tiny_run.graded_by(session, grader) if grader else session
    problems = session.task.problems("train")
    groups = first_return(session, params, STEP, prepare(session.texts, [(7 * i, problems[i]) for i in range(4)]))
    anchored = place_anchors(session, STEP, [group for group in groups if group.kept])
    session.sampler.engine.take_counts()
    expansions = roll_out_states(session, params, STEP, anchored)
    return SimpleNamespace(session=session, expansions=expansions, counts=session.sampler.engine.take_counts())


def states_of(expansions: list[Explored]):
    for e in expansions:
        for fork, state, rollouts in zip(e.forks, e.states, e.rollouts, strict=True):
            yield e, fork, state, rollouts


@pytest.fixture(scope="module")
def stage(session, params, tiny_run):
    return explored(session, params, tiny_run)


@pytest.fixture(scope="module")
def including_stage(session, params, tiny_run):
    return explored(session, params, tiny_run, explore__include_anchor_token=True)


def test_anchors_are_the_most_uncertain_tokens_of_their_own_base(stage):
    assert len(stage.expansions) > 8 and len({e.group.position for e in stage.expansions}) > 2
    for expansion in stage.expansions:
        order = np.argsort(-expansion.rollout.entropies[1:], kind="stable") + 1  # position 0 would be S_0
        assert expansion.anchors == sorted(order[:2].tolist())
        assert expansion.forks == expansion.anchors
        assert expansion.states == list(range(1, len(expansion.anchors) + 1))


def test_including_the_anchor_token_bars_the_last_position_and_frees_the_first(including_stage):
    for expansion in including_stage.expansions:
        order = np.argsort(-expansion.rollout.entropies[:-1], kind="stable")
        assert expansion.anchors == sorted(order[:2].tolist())
        assert expansion.forks == [anchor + 1 for anchor in expansion.anchors]


@pytest.mark.parametrize("name", ["stage", "including_stage"])
def test_each_state_samples_its_first_token_where_the_base_sampled_the_one_after_the_fork(name, request):
    """Same prefix, same cache: the entropy there is the base's. Pairs of another row or position differ."""
    stage, compared = request.getfixturevalue(name), 0
    for expansion, fork, _, rollouts in states_of(stage.expansions):
        assert 1 <= fork < len(expansion.rollout.token_ids) and len(rollouts) == M
        for rollout in rollouts:
            np.testing.assert_allclose(rollout.entropies[0], expansion.rollout.entropies[fork], atol=1e-5)
            compared += 1
    assert compared > 30
    all_entropies = np.sort(np.concatenate([e.rollout.entropies[1:] for e in stage.expansions]))
    assert np.median(np.diff(all_entropies)) > 1e-4, "entropies are too equal to tell positions apart"


def test_rewards_judge_base_prefix_and_continuation_together(session, params, tiny_run):
    """The verifier reads the first character, which lies before every anchor: each state has its base's reward."""
    calls = []

    def verifier(problem, response, finished):
        calls.append((problem.id, response, finished))
        return float(response[:1] in set("0123456789"))

    stage = explored(session, params, tiny_run, tiny_run.in_order(verifier))
    graded = iter(calls[16:])  # the base rollouts of four prompts came first
    outcomes = set()
    for expansion, fork, state, rollouts in states_of(stage.expansions):
        rewards = expansion.rewards[expansion.states.index(state)]
        assert rewards.tolist() == [expansion.group.rewards[expansion.base]] * M
        outcomes.add(rewards[0])
        for rollout in rollouts:
            ids = np.concatenate([expansion.rollout.token_ids[:fork], rollout.token_ids]).tolist()
            ids = ids[:-1] if rollout.finished else ids
            text = stage.session.texts.codec.tokenizer.decode(ids, skip_special_tokens=False)
            assert next(graded) == (expansion.group.problem.id, text, rollout.finished)
    assert next(graded, None) is None and outcomes == {0.0, 1.0}


def test_whole_responses_keep_to_the_cap_of_base_rollouts(stage):
    cut = 0
    for _, fork, _, rollouts in states_of(stage.expansions):
        for rollout in rollouts:
            length = fork + len(rollout.token_ids)
            assert length <= CAP and (rollout.finished or length == CAP)
            cut += not rollout.finished
    assert cut > 3


def test_exploring_prefills_nothing_and_reuses_each_prefix(stage):
    assert stage.counts.prefill_positions == 0
    prefixes = [len(e.group.prompt_ids) + fork for e, fork, _, _ in states_of(stage.expansions)]
    assert stage.counts.reused_prefix_positions == M * sum(prefixes)
    new = [len(r.token_ids) for _, _, _, rollouts in states_of(stage.expansions) for r in rollouts]
    assert stage.counts.sampled_tokens == sum(new)


def test_every_rollout_of_a_step_has_noise_of_its_own(session, params, tiny_run, monkeypatch):
    streams, sample = [], session.sampler.engine.sample

    def noted(params, requests, *callbacks, **named):
        streams.extend(branch.stream for request in requests for branch in request.branches)
        return sample(params, requests, *callbacks, **named)

    monkeypatch.setattr(session.sampler.engine, "sample", noted)
    stage = explored(session, params, tiny_run, explore__initial_state="fresh")
    assert len(streams) == 16 + M * sum(len(e.states) for e in stage.expansions)
    assert len(set(streams)) == len(streams)
    assert all(stream[1] == STEP for stream in streams)


def test_a_fresh_initial_state_starts_at_the_prompt_and_trains_as_state_0(session, params, tiny_run):
    fresh = explored(session, params, tiny_run, explore__initial_state="fresh")
    for expansion in assign_advantages(fresh.session.config.explore, fresh.session.config.advantage, fresh.expansions):
        assert expansion.states == [0, *range(1, len(expansion.anchors) + 1)]
        assert expansion.forks == [0, *expansion.anchors]
        np.testing.assert_allclose([r.entropies[0] for r in expansion.rollouts[0]], expansion.rollout.entropies[0])
        start = expansion.rewards[0].mean()
        np.testing.assert_allclose(expansion.initial_value, start, atol=1e-6)
        assert expansion.alphas[0] == 1
        np.testing.assert_allclose(expansion.advantages[0], expansion.rewards[0] - start, atol=1e-6)
        np.testing.assert_allclose(expansion.alphas[1], math.exp(start - expansion.rewards[1].mean()), atol=1e-5)


# -- anchors of scripted base rollouts ---------------------------------------------------------------------------------


def scripted_group(session, bases: list[dict], rewards, position: int = 0) -> PromptGroup:
    """Base rollouts with the arrays of ``bases``; all are chosen."""
    rollouts = []
    for base in bases:
        length = len(next(iter(base.values())))
        arrays = {name: np.asarray(base.get(name, np.zeros(length)), np.float32) for name in FIELDS}
        rollouts.append(Rollout(np.arange(length, dtype=np.int32) + 2, **arrays, finished=True))
    problem = Problem("p", "12=", "12")
    rewards = np.array(rewards, float)
    return PromptGroup(
        position, problem, session.texts.encode("12="), rollouts, rewards, chosen=list(range(len(bases)))
    )


FIELDS = ("logprobs", "entropies", "magnitudes")
ARRAYS = {
    "entropies": [9, 1, 8, 2, 7, 3],
    "logprobs": [-9, -1, -2, -8, -3, -7],
    "magnitudes": [9, 5, 1, 2, 6, 3],
}


@pytest.mark.parametrize(
    ("selection", "expected"), [("entropy", [2, 4]), ("logprob", [3, 5]), ("gradient", [1, 4]), ("uniform", [2, 4])]
)
def test_each_selection_reads_its_own_array(session, tiny_run, selection, expected):
    twin = tiny_run.changed(session, explore__anchor_selection=selection)
    (expansion,) = place_anchors(twin, STEP, [scripted_group(session, [ARRAYS], [1])])
    assert expansion.anchors == expected


def test_random_anchors_depend_on_seed_step_prompt_and_base_alone(session, tiny_run):
    def placed(seed=0, step=STEP, position=0):
        twin = tiny_run.changed(session, explore__anchor_selection="random", seed=seed)
        group = scripted_group(session, [{"entropies": [0] * 40}] * 3, [1, 0, 1], position)
        return [tuple(e.anchors) for e in place_anchors(twin, step, [group])]

    assert placed() == placed()
    assert len({*placed(), *placed(seed=1), *placed(step=5), *placed(position=1)}) == 12


def test_spacing_is_respected(session, tiny_run):
    twin = tiny_run.changed(session, explore__num_anchors=3, explore__min_spacing=3)
    entropies = [9, 9, 5, 8, 7, 6, 4, 3, 9]
    (expansion,) = place_anchors(twin, STEP, [scripted_group(session, [{"entropies": entropies}], [1])])
    assert expansion.anchors == [1, 4, 8]


def written(session, text: str, stop: bool = True) -> Rollout:
    ids = np.array([*session.texts.codec.encode(text), *session.texts.codec.stop_ids[:stop]], np.int32)
    return Rollout(ids, *np.zeros((3, len(ids)), np.float32), finished=stop)


@pytest.mark.parametrize(
    ("text", "anchors"),
    [
        ("12>34>5", [3, 6]),
        ("12>>34", [4]),  # the last of several delimiters ends the step
        (">12", [1]),
        ("12>", [3]),  # the stop token is a step of its own
        ("1>2>3>4>5", [2, 6]),  # K = 2 evenly among four
        ("12", []),
        ("", []),  # the stop token alone
    ],
)
@pytest.mark.parametrize("include", [False, True])
def test_steps_end_with_a_delimiter(session, tiny_run, text, anchors, include):
    twin = tiny_run.changed(
        session,
        explore__anchor_selection="delimiter", explore__delimiter=">", explore__include_anchor_token=include,
    )  # fmt: skip
    group = scripted_group(session, [{"entropies": [0]}], [1])
    group.rollouts = [written(session, text)]
    found = place_anchors(twin, STEP, [group])
    assert [fork for e in found for fork in e.forks] == anchors
    assert [anchor for e in found for anchor in e.anchors] == [fork - include for fork in anchors]


def test_steps_are_lines_by_default(session, tiny_run, monkeypatch):
    twin = tiny_run.changed(session, explore__anchor_selection="delimiter")
    texts = dict(enumerate("12\n34"))
    monkeypatch.setattr(type(twin.texts.codec), "decode", lambda _, ids, **options: "".join(texts[i] for i in ids))
    group = scripted_group(session, [{"entropies": [0]}], [1])
    group.rollouts = [Rollout(np.arange(5, dtype=np.int32), *np.zeros((3, 5), np.float32), finished=False)]
    (expansion,) = place_anchors(twin, STEP, [group])
    assert expansion.anchors == [3]


def test_no_step_begins_after_a_cut_response_and_special_tokens_have_no_text(session, tiny_run):
    twin = tiny_run.changed(session, explore__anchor_selection="delimiter", explore__delimiter=">")
    group = scripted_group(session, [{"entropies": [0]}], [1])
    group.rollouts = [written(session, "1>2>", stop=False)]
    group.rollouts[0].token_ids[2] = session.texts.codec.pad_id
    assert session.texts.codec.decode([session.texts.codec.pad_id], special_tokens=True) == "<pad>"
    (expansion,) = place_anchors(twin, STEP, [group])
    assert expansion.anchors == [2]


def test_short_responses_have_fewer_anchors_and_are_left_out_without_any(session, tiny_run):
    twin = tiny_run.changed(session, explore__num_anchors=4)
    bases = [{"entropies": [1, 2, 3]}, {"entropies": [1, 2]}, {"entropies": [1]}]
    group = scripted_group(session, bases, [1, 0, 1])
    assert [(e.base, e.anchors) for e in place_anchors(twin, STEP, [group])] == [(0, [1, 2]), (1, [1])]
    fresh = tiny_run.changed(twin, explore__initial_state="fresh")
    assert [(e.base, e.states, e.forks) for e in place_anchors(fresh, STEP, [group])] == [
        (0, [0, 1, 2], [0, 1, 2]),
        (1, [0, 1], [0, 1]),
        (2, [0], [0]),
    ]
    assert place_anchors(twin, STEP, []) == []


# -- values and advantages of scripted rewards -------------------------------------------------------------------------


def scripted_expansion(session, anchors, rewards, base_rewards=(1.0, 0.0), base=0, fresh=False) -> Explored:
    bases = [{"entropies": np.linspace(0, 1, 9)} for _ in base_rewards]
    group = scripted_group(session, bases, base_rewards)
    anchored = anchored_at(group, base, anchors, anchor_rules(session.config.explore), fresh=fresh)
    rollouts = [
        [
            Rollout(np.array([30 * i + m, 1], np.int32), *np.full((3, 2), -i - 0.1 * m, np.float32), True)
            for m in range(M)
        ]
        for i in range(len(anchored.states))
    ]
    outcomes = [["right"] * M] * len(rollouts)
    return Explored(**vars(anchored), rollouts=rollouts, rewards=list(np.array(rewards, float)), outcomes=outcomes)


def credited(session, *explored: Explored) -> list[Credited]:
    return assign_advantages(session.config.explore, session.config.advantage, list(explored))


@pytest.fixture
def four_anchors(session, tiny_run):
    return tiny_run.changed(session, explore__num_anchors=4)


def test_values_and_modulation_survive_the_filtering_of_neighbours(four_anchors):
    """S_1 and S_3 are all right and all wrong: they leave the loss, their values stay in their neighbours' alpha."""
    rewards = [[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]
    expansion = scripted_expansion(four_anchors, [1, 3, 5, 7], rewards, base_rewards=(1, 0, 0, 0))
    short = scripted_expansion(four_anchors, [2], [[0, 1, 1]], base=1)  # padded to four states inside
    expansion, short = credited(four_anchors, expansion, short)
    values = [1, 1 / 3, 0, 2 / 3]
    alphas = [math.exp(-d) for d in (1 - 0.25, 1 / 3 - 1, 0 - 1 / 3, 2 / 3)]
    np.testing.assert_allclose(expansion.values, values, atol=1e-6)
    np.testing.assert_allclose(expansion.alphas, alphas, rtol=1e-5)
    assert expansion.initial_value == 0.25
    for j, row in enumerate(rewards):
        np.testing.assert_allclose(expansion.advantages[j], [alphas[j] * (r - values[j]) for r in row], atol=1e-5)
    assert expansion.trained == [False, True, False, True]
    np.testing.assert_allclose(short.alphas, [math.exp(-(2 / 3 - 0.5))], rtol=1e-5)
    assert short.trained == [True]


def test_training_trunks_hold_the_new_tokens_of_mixed_states(four_anchors):
    rewards = [[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]
    expansion = scripted_expansion(four_anchors, [1, 3, 5, 7], rewards)
    outcomes = [["right" if reward else "wrong" for reward in row] for row in rewards]
    expansion = dataclasses.replace(expansion, outcomes=outcomes)
    dull = scripted_expansion(four_anchors, [1, 2], [[0, 0, 0], [1, 1, 1]])
    expansion, dull = credited(four_anchors, expansion, dull)
    (trunk,) = explored_trunks(four_anchors.config.explore, STEP, [expansion, dull])
    group = expansion.group
    np.testing.assert_array_equal(trunk.token_ids, [*group.prompt_ids, *group.rollouts[0].token_ids])
    assert trunk.step == STEP
    assert [branch.fork for branch in trunk.branches] == [3 + 3] * M + [3 + 7] * M
    trained = [(i, m) for i in (1, 3) for m in range(M)]
    for (i, m), branch in zip(trained, trunk.branches, strict=True):
        assert branch.token_ids.tolist() == [30 * i + m, 1]
        np.testing.assert_allclose(branch.advantages, [expansion.advantages[i][m]] * 2)
        assert branch.sampler_logprobs is expansion.rollouts[i][m].logprobs and branch.right == rewards[i][m]


def test_without_modulation_the_advantages_are_those_of_the_estimator(four_anchors, tiny_run):
    twin = tiny_run.changed(four_anchors, advantage__modulation="none", advantage__state_estimator="rloo")
    expansion = scripted_expansion(four_anchors, [1, 3], [[1, 0, 0], [1, 1, 0]])
    (expansion,) = credited(twin, expansion)
    np.testing.assert_allclose(expansion.advantages, [[1, -0.5, -0.5], [0.5, 0.5, -1]], atol=1e-6)
    assert expansion.alphas.tolist() == [1, 1]


def test_sharpened_modulation_weights_a_fresh_state_0_as_the_authors_do(four_anchors, tiny_run):
    """Their δ_0 = 1 − V(S_0) is in the sharpened sum: δ = 2/3, 1/3, and |δ|^1.5 have the ratio 2^1.5."""
    twin = tiny_run.changed(four_anchors, explore__initial_state="fresh", advantage__modulation="sharpen")
    expansion = scripted_expansion(four_anchors, [1], [[1, 0, 0], [1, 1, 0]], fresh=True)
    (expansion,) = credited(twin, expansion)
    alphas = [math.exp(-(2**1.5) / (2**1.5 + 1)), math.exp(-1 / (2**1.5 + 1))]
    np.testing.assert_allclose(expansion.alphas, alphas, rtol=1e-5)
    np.testing.assert_allclose(expansion.advantages[0], alphas[0] * np.array([2, -1, -1]) / 3, atol=1e-6)


@pytest.mark.parametrize("include", [False, True])
def test_block_credit_trains_each_block_of_the_base_on_the_change_of_value(four_anchors, tiny_run, include):
    twin = tiny_run.changed(four_anchors, explore__block_credit=True, explore__include_anchor_token=include)
    expansion = scripted_expansion(twin, [2, 5], [[1, 1, 0], [0, 0, 0]], base_rewards=(1, 0, 0, 0))
    (expansion,) = credited(twin, expansion)
    (trunk,) = explored_trunks(twin.config.explore, STEP, [expansion])
    base = trunk.branches[-1]
    assert len(trunk.branches) == M + 1 and base.fork == 3 and base.right
    assert base.token_ids is expansion.rollout.token_ids and base.sampler_logprobs is expansion.rollout.logprobs
    assert [branch.on_trunk for branch in trunk.branches] == [False] * M + [True]
    np.testing.assert_array_equal(trunk.token_ids[base.fork :], base.token_ids)
    first, second = 2 + include, 5 + include  # where the states end
    blocks = [2 / 3 - 0.25] * first + [0 - 2 / 3] * (second - first) + [1.0] * (9 - second)
    np.testing.assert_allclose(base.advantages, blocks, atol=1e-6)


# -- explored rollouts that only estimate, step values, rewards of plus and minus one ---------------------------------


def test_states_that_do_not_train_leave_the_base_with_the_values_they_gave(four_anchors, tiny_run):
    """VinePPO: A = V(s_t+1) - V(s_t) on the base's own tokens, and nothing else trains."""
    twin = tiny_run.changed(four_anchors, explore__train_states=False, explore__block_credit=True)
    expansion = scripted_expansion(twin, [2, 5], [[1, 1, 0], [0, 0, 0]], base_rewards=(1, 0, 0, 0))
    useless = scripted_expansion(twin, [3], [[0, 0, 0]], base_rewards=(0, 0), base=1)
    expansion, useless = credited(twin, expansion, useless)
    assert expansion.trained == [False, False]
    (trunk,) = explored_trunks(twin.config.explore, STEP, [expansion, useless])
    (base,) = trunk.branches
    np.testing.assert_allclose(base.advantages, [2 / 3 - 1 / 4] * 2 + [-2 / 3] * 3 + [1.0] * 4, atol=1e-6)


def test_with_block_credit_a_response_without_a_border_trains_as_one_step(session, params, tiny_run):
    """VinePPO: A = r - V(s_0) on all its tokens; without block credit there is nothing to train."""
    settings = {"explore__anchor_selection": "delimiter", "explore__delimiter": "no such text"}
    settings |= {"rollout__reject_degenerate": False}
    assert explored(session, params, tiny_run, **settings).expansions == []
    stage = explored(session, params, tiny_run, explore__block_credit=True, **settings)
    assert stage.expansions and all(e.states == [] for e in stage.expansions)
    metrics = rollout_metrics([e.group for e in stage.expansions], credited(stage.session, *stage.expansions))
    assert metrics["state_groups/mixed"] == 0 and "alpha/mean" not in metrics
    one = dataclasses.replace(stage.expansions[0])
    one.group.rewards[:] = 0.0
    one.group.rewards[one.base] = 1.0
    prompt, length = one.group.prompt_ids, len(one.rollout.token_ids)
    recorded = np.arange(2 * (len(prompt) + length), dtype=np.uint8).reshape(-1, 2)
    one.group.rollouts[one.base] = dataclasses.replace(
        one.rollout, trunk_routes=recorded[: len(prompt)], routes=recorded[len(prompt) :]
    )
    (trunk,) = explored_trunks(stage.session.config.explore, STEP, credited(stage.session, one))
    (branch,) = trunk.branches
    np.testing.assert_array_equal(trunk.routes, recorded, "the base alone tells which experts its trunk passed")
    wanted = 1.0 - one.group.rewards.mean()
    np.testing.assert_allclose(branch.advantages, np.full(len(one.rollout.token_ids), wanted), atol=1e-6)


def test_step_values_count_the_leaves_of_the_whole_prompt(four_anchors, tiny_run):
    """Two bases of a prompt, wrong and right; 4 + 3 + 6 leaves of which 1 + 1 + 4 are right: V(root) = 6 / 13."""
    twin = tiny_run.changed(
        four_anchors,
        explore__block_credit=True, advantage__state_estimator="tree", advantage__modulation="none",
    )  # fmt: skip
    wrong = scripted_expansion(twin, [2], [[1, 0, 0]], base_rewards=(0, 1, 0, 0), base=0)
    right = scripted_expansion(twin, [3, 6], [[1, 0, 0], [1, 1, 1]], base_rewards=(0, 1, 0, 0), base=1)
    wrong, right = credited(twin, wrong, dataclasses.replace(right, group=wrong.group))
    root = 6 / 13
    wanted = [[2 * r - root - 1 / 4 for r in (1, 0, 0)]]
    np.testing.assert_allclose(wrong.advantages, wanted, atol=1e-6)
    wanted = [[2 * r - root - v for r in row] for row, v in (((1, 0, 0), 5 / 7), ((1, 1, 1), 1.0))]
    np.testing.assert_allclose(right.advantages, wanted, atol=1e-6)
    assert right.trained == [True, True], "all are right, and better than the rest of the tree"
    np.testing.assert_allclose(right.values, [1 / 3, 1])
    steps = [2 * (5 / 7 - root) / 7**0.5, (1 - root + 1 - 5 / 7) / 4**0.5, 1 - root]
    np.testing.assert_allclose(right.block_credit, steps, atol=1e-6)
    trunks = explored_trunks(twin.config.explore, STEP, [wrong, right])
    assert [len(trunk.branches) for trunk in trunks] == [M + 1, 2 * M + 1]


def test_a_tree_of_equal_rewards_does_not_train(four_anchors, tiny_run):
    twin = tiny_run.changed(
        four_anchors,
        explore__block_credit=True, advantage__state_estimator="tree", advantage__modulation="none",
    )  # fmt: skip
    expansion = scripted_expansion(twin, [2, 4], [[0.9] * 3] * 2, base_rewards=(0.9, 0.9))
    (expansion,) = credited(twin, expansion)
    assert expansion.trained == [False, False] and explored_trunks(twin.config.explore, STEP, [expansion]) == []


def test_rewards_of_plus_and_minus_one_double_differences_and_stay_out_of_the_reported_values(four_anchors, tiny_run):
    found = {}
    for reward_range in ("zero_one", "minus_one_one"):
        twin = tiny_run.changed(four_anchors, advantage__reward_range=reward_range)
        expansion = scripted_expansion(twin, [2, 5], [[1, 1, 0], [0, 0, 1]], base_rewards=(1, 0, 0, 0))
        (found[reward_range],) = credited(twin, expansion)
    narrow, wide = found["zero_one"], found["minus_one_one"]
    np.testing.assert_allclose(wide.values, narrow.values, atol=1e-6)
    assert wide.initial_value == narrow.initial_value
    np.testing.assert_array_equal(wide.rewards, narrow.rewards)
    np.testing.assert_allclose(wide.alphas, narrow.alphas**2, rtol=1e-5)
    for j in range(2):
        doubled = 2 * narrow.advantages[j] * narrow.alphas[j]
        np.testing.assert_allclose(wide.advantages[j], doubled, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(wide.block_credit, 2 * np.array(narrow.block_credit), atol=1e-6)


def test_a_verifier_that_raises_costs_only_its_own_reward(session, params, tiny_run):
    def verifier(problem, response, finished):
        if "=" in response:
            raise RuntimeError("broken case")
        return float(sum(map(ord, response)) % 2 == 0)

    grader = Grader(verifier)
    stage = explored(session, params, tiny_run, grader)
    outcomes = grader.take_outcomes()
    assert outcomes["error"] > 0 and outcomes["right"] > 0 and stage.expansions
    assert {o for e in stage.expansions for state in e.outcomes for o in state} <= {"right", "wrong", "error"}
