"""Rejection-sampling fine-tuning: the cut of a response, the filters, and the selection."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from encoded_prompts import prepare

from fr3e_jax.configuration.schema import RftConfig
from fr3e_jax.data.stream import Prompt
from fr3e_jax.data.task import Problem
from fr3e_jax.learning.learner import Learner
from fr3e_jax.loop.rollout_entries import of_part
from fr3e_jax.objectives.entropy import branching_factor
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.runs.rollout_parts import Part
from fr3e_jax.verbs.supervised.rft_responses import (
    GradedResponse,
    cut_after_answer,
    reason_to_drop,
    response_entries,
    sample_responses,
)
from fr3e_jax.verbs.supervised.rft_selection import mean_branching_factors, select_responses, training_trunks
from fr3e_jax.verdict import Verdict


class Spelling:
    """A codec whose tokens are these pieces of text, the stop token last."""

    def __init__(self, *pieces: str):
        self.pieces, self.stop_ids = [*pieces, ""], (len(pieces),)

    def decode(self, ids, special_tokens=False):
        return "".join(self.pieces[i] for i in ids)


def spelled(*pieces: str, finished: bool = True):
    """Texts with that codec, and a rollout of all the pieces."""
    length = len(pieces) + finished
    arrays = [np.arange(length, dtype=np.float32) + 10 * k for k in range(3)]
    codec = Spelling(*pieces)
    return SimpleNamespace(codec=codec), Rollout(np.arange(length, dtype=np.int32), *arrays, finished)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        (["so ", r"\boxed{", "4", "}", ". And", " more"], 4),
        (["so ", r"\boxed{", "4", "}.", " And", " more"], 4),  # the token that closes the box stays whole
        (["$", r"\text{\boxed{", "4}", "}", "$ more"], 4),  # and so do the braces around it
        ([r"\boxed{4}", " or ", r"\boxed{5}"], 1),
        ([r"\boxed ", "4", " more"], 2),
    ],
)
def test_a_response_ends_with_the_token_that_closes_its_first_box(pieces, kept, finished):
    texts, rollout = spelled(*pieces, finished=finished)
    cut = cut_after_answer(texts, rollout)
    assert cut.token_ids.tolist() == [*range(kept), len(pieces)] and cut.finished
    for name in ("logprobs", "entropies", "magnitudes"):
        np.testing.assert_array_equal(getattr(cut, name)[:kept], getattr(rollout, name)[:kept])
        assert math.isnan(getattr(cut, name)[kept]), "nobody drew this stop token"


@pytest.mark.parametrize(
    ("pieces", "finished"),
    [
        (["no ", "box"], True),
        ([r"\boxed{", "4"], False),  # never closed
        (["so ", r"\boxed{", "4", "}"], True),
        ([], True),
        (["no"], False),
    ],
)
def test_a_response_without_a_box_or_that_ends_with_it_is_not_cut(pieces, finished):
    texts, rollout = spelled(*pieces, finished=finished)
    assert cut_after_answer(texts, rollout) is rollout


def test_a_response_capped_right_after_its_box_gets_a_stop_token():
    texts, rollout = spelled("so ", r"\boxed{4}", finished=False)
    cut = cut_after_answer(texts, rollout)
    assert cut.token_ids.tolist() == [0, 1, 2] and cut.finished


# -- filters -----------------------------------------------------------------------------------------------------------


def response_of(session, text, *, outcome="right", reward=None, finished=True, entropy=0.0, position=0, number=0):
    ids = np.array([*session.texts.codec.encode(text), *session.texts.codec.stop_ids[:finished]], np.int32)
    flat = np.full(len(ids), entropy, np.float32)
    prompt = Prompt(position, Problem("p", "1=", "1"), session.texts.encode("1="))
    verdict = Verdict(float(outcome == "right") if reward is None else reward, outcome)
    return GradedResponse(prompt, number, Rollout(ids, flat, flat, flat, finished), verdict)


@pytest.mark.parametrize(
    ("text", "change", "reason"),
    [
        ("12+34", {}, ""),
        ("12+34", {"outcome": "wrong"}, ""),
        ("12+34", {"outcome": "string_only"}, ""),
        ("12+34", {"finished": False}, "unfinished"),
        ("12+34", {"outcome": "no_answer"}, "no_answer"),
        ("12+34", {"outcome": "timeout"}, "no_answer"),
        ("+-*>", {}, "no_digit"),
        ("", {}, "no_digit"),
        ("1212121", {}, "redundant"),
    ],
)
def test_each_filter_drops_its_own(session, text, change, reason):
    assert reason_to_drop(session.config.rft, session.texts, response_of(session, text, **change)) == reason


def test_right_is_what_the_verifier_accepts_whatever_the_reward(session):
    assert response_of(session, "12", outcome="right", reward=0.7).right
    assert not response_of(session, "12", outcome="wrong", reward=1.0).right


def test_redundancy_may_pass_and_a_digit_is_expected_where_the_gold_answer_has_one(session):
    assert reason_to_drop(RftConfig(max_redundancy=1.0), session.texts, response_of(session, "1111111")) == ""
    response = response_of(session, "+-*>")
    response.prompt = Prompt(0, Problem("p", "1=", "minus"), response.prompt.token_ids)
    assert reason_to_drop(session.config.rft, session.texts, response) == ""


# -- selection ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learner(session, params):
    return Learner(session.model.train_programs(session.config, supervised=True), params, None)


def sampled_responses(session, right=8, wrong=6):
    """Responses of four prompts with rising entropy, the right ones first; one of each kind is malformed."""
    found = []
    for n in range(right + wrong):
        outcome = "right" if n < right else "wrong"
        found.append(response_of(session, f"{n}+1", outcome=outcome, entropy=n, position=n % 4, number=n))
    found[1].dropped = found[right].dropped = "redundant"
    return found


def test_parts_of_the_responses_are_all_of_them_and_selected_ones_are_marked(session):
    responses = sampled_responses(session)
    whole = response_entries(3, responses, responses[4:6])
    parts = [of_part(whole, Part(index, 3)) for index in range(3)]
    ids = [entry.fields["id"] for entry in whole]
    assert [entry.fields["id"] for part in parts for entry in part] == ids == [f"3/{n % 4}/{n}" for n in range(14)]
    assert all(3 <= len(part) <= 6 for part in parts)
    assert [entry.fields["kept"] for entry in whole] == [n in (4, 5) for n in range(14)]
    assert whole[0].record().reward == 1.0 and whole[8].record().outcome == "wrong"


def chosen(session, learner, tiny_run, **settings):
    twin = tiny_run.changed(session, **{f"rft__{name}": value for name, value in settings.items()})
    responses = sampled_responses(session)
    selected, metrics = select_responses(twin.learning, learner, 0, responses)
    assert metrics["rft/sampled"] == 14 and metrics["rft/usable_right"] == 7 and metrics["rft/usable_wrong"] == 5
    assert metrics["rft/dropped_redundant"] == 2
    numbers = [r.response_index for r in selected]
    assert numbers == sorted(set(numbers)) and not {1, 8} & set(numbers)
    split = sum(n < 8 for n in numbers)
    assert (metrics["rft/selected_right"], metrics["rft/selected_wrong"]) == (split, len(numbers) - split)
    return numbers[:split], numbers[split:]


def test_all_right_responses_are_taken_by_default(session, learner, tiny_run):
    assert chosen(session, learner, tiny_run) == ([0, 2, 3, 4, 5, 6, 7], [])  # 5 % of 7 rounds to none


def test_the_highest_entropies_are_taken_first(session, learner, tiny_run):
    assert chosen(session, learner, tiny_run, select="entropy", responses=3)[0] == [5, 6, 7]
    assert chosen(session, learner, tiny_run, select="entropy", responses=1)[0] == [7]


def test_a_random_choice_follows_from_the_seed(session, learner, tiny_run):
    taken = [
        chosen(tiny_run.changed(session, seed=seed), learner, tiny_run, responses=3)[0] for seed in (0, 0, 1, 2, 3)
    ]
    assert taken[0] == taken[1] and len(set(map(tuple, taken))) > 2 and {len(t) for t in taken} == {3}


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.125, 1), (0.3, 3), (0.9, 5)])
def test_wrong_ones_are_their_share_of_what_trains_as_far_as_there_are_any(session, learner, tiny_run, share, count):
    right, wrong = chosen(session, learner, tiny_run, negative_share=share)
    assert len(right) == 7 and len(wrong) == count


def test_without_right_responses_nothing_is_selected(session, learner, tiny_run):
    for select in ("random", "entropy", "branching_factor"):
        twin = tiny_run.changed(session, rft__select=select)
        selected, metrics = select_responses(twin.learning, learner, 0, sampled_responses(session, right=0, wrong=3))
        assert selected == [] and metrics["rft/selected_right"] == 0


def test_branching_factors_are_those_of_the_whole_sequence(session, params, learner, tiny_run):
    """Against logits of one plain causal pass; a stop token that was appended does not count."""
    responses = [
        response_of(session, "12+3"),
        response_of(session, "4", number=1),
        response_of(session, "5", position=1),
    ]
    responses[0].rollout.logprobs[-1] = np.nan
    found = mean_branching_factors(session.learning, learner, responses)
    for response, ours in zip(responses, found, strict=True):
        prompt, ids = response.prompt.token_ids, response.rollout.token_ids
        logits = tiny_run.full_logits(session, params, [*prompt, *ids])[len(prompt) - 1 : -1]
        counted = ~np.isnan(response.rollout.logprobs)
        assert ours == pytest.approx(np.asarray(branching_factor(logits))[counted].mean(), abs=1e-6)
    assert len(set(found)) == 3


def test_the_highest_branching_factors_are_taken_first(session, learner, tiny_run):
    twin = tiny_run.changed(session, rft__select="branching_factor", rft__responses=4, rft__negative_share=0.0)
    responses = [r for r in sampled_responses(session) if r.right and not r.dropped]
    factors = mean_branching_factors(session.learning, learner, responses)
    selected, metrics = select_responses(twin.learning, learner, 0, responses)
    order = sorted(range(7), key=lambda n: (-factors[n], n))[:4]
    assert selected == [responses[n] for n in sorted(order)]
    assert metrics["rft/branching_factor_selected"] == pytest.approx(factors[order].mean())
    assert metrics["rft/branching_factor_selected"] > metrics["rft/branching_factor_right"]


def test_responses_of_a_prompt_share_its_trunk(session):
    responses = sampled_responses(session)
    trunks, numbers = training_trunks(responses, 3)
    assert [sorted(n % 4 for n in row) for row in numbers] == [[p] * len(row) for p, row in enumerate(numbers)]
    for trunk, row in zip(trunks, numbers, strict=True):
        assert trunk.token_ids.tolist() == session.texts.codec.encode("1=")
        assert [b.token_ids.tolist() for b in trunk.branches] == [responses[n].rollout.token_ids.tolist() for n in row]


def test_responses_are_graded_as_they_would_train(session, params, tiny_run):
    """Every sampled response, in the order of prompts; all of a prompt's noise is named by the iteration."""
    graded = []

    def verifier(problem, response, finished):
        graded.append((problem.id, response, finished))
        return float(finished)

    twin = tiny_run.changed(session)
    twin = tiny_run.graded_by(twin, Grader(verifier))
    problems = session.task.problems("train")
    prompts = prepare(session.texts, [(n, problems[n]) for n in range(3)])
    responses = sample_responses(twin, params, 1, prompts)
    assert [(r.prompt.position, r.response_index) for r in responses] == [(p, n) for p in range(3) for n in range(4)]
    for r in responses:
        text = session.texts.response_text(r.rollout.token_ids, r.rollout.finished)
        assert (r.prompt.problem.id, text, r.rollout.finished) in graded
        assert r.right == r.rollout.finished and r.dropped == reason_to_drop(twin.config.rft, twin.texts, r)
    assert len({r.dropped for r in responses}) > 1
    again = sample_responses(twin, params, 2, prompts)
    assert [r.rollout.token_ids.tolist() for r in again] != [r.rollout.token_ids.tolist() for r in responses]
