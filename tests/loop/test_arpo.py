"""ARPO's sampling: forks follow from the rule alone, each position is computed once, each rollout is exact."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fr3e_jax.loop.arpo import sample_branching
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.noise import TOOL
from fr3e_jax.rollouts.tool_calls import answer_spans

FIRST, COUNT, TOKENS = 2, 6, 3


@pytest.fixture(scope="module", autouse=True)
def entropies_of_three_tokens():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fr3e_jax.loop.arpo.ENTROPY_TOKENS", TOKENS)
        yield


def branching(scripted_tool, session, probability: float, **engine) -> SimpleNamespace:
    config = copy.deepcopy(session.config)
    config.rollout.max_response_tokens = 16
    tools = config.tools
    tools.branching, tools.initial_rollouts, tools.branch_probability = True, FIRST, probability
    tools.beam, tools.entropy_weight = 3, 0.4
    shapes = Shapes(**{"slots": 2, "lanes": 3, "chunk": 4} | engine)
    own = RolloutEngine(session.sampler.engine.programs, shapes, seed=7)
    sampler = dataclasses.replace(session.sampler, toolbox=scripted_tool.toolbox_of(session), engine=own)
    return dataclasses.replace(session, config=config, sampler=sampler)


@pytest.fixture(scope="module")
def requests(scripted_tool, session):
    """Requests of six rollouts each, all sampled at temperature 1."""
    found = []
    for request in scripted_tool.requests_of(session):
        likely = request.branches[1]
        branches = [dataclasses.replace(likely, stream=(*likely.stream[:3], n)) for n in range(COUNT)]
        found.append(dataclasses.replace(request, branches=branches))
    return found


@pytest.fixture(scope="module")
def sampled(scripted_tool, session, params, requests):
    return partial(sample, scripted_tool, session, params, requests)


def sample(scripted_tool, session, params, requests, **settings) -> SimpleNamespace:
    used, ended = branching(scripted_tool, session, **settings), []
    results, promoted = sample_branching(used, params, requests, lambda i, rollouts, wait: [], ended.extend)
    assert not promoted
    assert sorted((i, n) for i, n, _ in ended) == [(i, n) for i in range(len(results)) for n in range(COUNT)]
    for i, n, rollout in ended:
        np.testing.assert_array_equal(rollout.token_ids, results[i][n].token_ids)
    return SimpleNamespace(
        session=used, results=results, counts=used.sampler.engine.counts, calls=used.sampler.toolbox.take_counts()
    )


@pytest.fixture(scope="module")
def expected(sampled):
    return sampled(probability=0.6)


def forks_of(session, rollouts, number: int, start: int, position: int) -> list[tuple[int, int]]:
    """(parent, fork) of the tries that the rule accepts at the answers of a rollout after ``start``, one by one."""
    tools, rollout, found = session.config.tools, rollouts[number], []
    own = np.flatnonzero(rollout.sampled)
    entropy = lambda places: rollout.entropies[places[:TOKENS]].sum() / np.log(session.model.architecture.vocab_size)
    for _, end in answer_spans(rollout.tool_written):
        if start < end < len(rollout.token_ids):
            change = entropy(own[own >= end]) - entropy(own)
            uniforms = session.noise.generator(TOOL, 0, 1, position, number, end).random(tools.beam - 1)
            kept = np.clip(uniforms - tools.entropy_weight * change, 0, 1) <= tools.branch_probability
            found += [(number, end)] * int(kept.sum())
    return found


def test_rollouts_branch_where_the_rule_says_and_the_rest_begins_at_the_prompt(expected):
    branched = 0
    for position, rollouts in enumerate(expected.results):
        known, new = FIRST, [(number, 0) for number in range(FIRST)]
        while known < COUNT:
            forks = [f for number, start in new for f in forks_of(expected.session, rollouts, number, start, position)]
            forks = sorted(forks[: COUNT - known])
            branched += len(forks)
            forks = forks or [(0, 0)] * (COUNT - known)
            new = [(known + i, fork) for i, (_, fork) in enumerate(forks)]
            for (parent, fork), (number, _) in zip(forks, new, strict=True):
                for name in ("token_ids", "logprobs", "entropies", "sampled"):
                    ours, theirs = (getattr(rollouts[n].head(fork), name) for n in (number, parent))
                    np.testing.assert_array_equal(ours, theirs)
            known += len(forks)
    assert branched == expected.calls["branched"] > 3


def test_no_position_is_computed_twice(requests, expected):
    prompts = [request.token_ids for request in requests]
    assert expected.counts.prefill_positions == sum(map(len, prompts))
    whole = sum(len(rollout.token_ids) for rollouts in expected.results for rollout in rollouts)
    assert expected.counts.sampled_tokens + expected.counts.tool_tokens < whole


def test_logprobs_are_those_of_one_forward_pass(session, params, requests, expected, tiny_run):
    for request, rollouts in zip(requests, expected.results, strict=True):
        for rollout in rollouts:
            whole = np.concatenate([request.token_ids, rollout.token_ids])
            logprobs = tiny_run.log_softmax(
                tiny_run.full_logits(session, params, whole)[len(request.token_ids) - 1 : -1]
            )
            own = np.take_along_axis(logprobs, rollout.token_ids[:, None], axis=1)[:, 0]
            np.testing.assert_allclose(rollout.logprobs, own, atol=2e-5)


@pytest.mark.slow
def test_slots_and_lanes_change_no_token(sampled, expected):
    again = sampled(probability=0.6, slots=1, lanes=5)
    for rollouts, wanted in zip(again.results, expected.results, strict=True):
        for rollout, other in zip(rollouts, wanted, strict=True):
            np.testing.assert_array_equal(rollout.token_ids, other.token_ids)
            np.testing.assert_array_equal(rollout.sampled, other.sampled)


def test_without_forks_the_rollouts_equal_plain_sampling(sampled, params, requests):
    found = sampled(probability=-1.0)
    plain, _ = found.session.sampler.sample(params, requests)
    assert found.calls["branched"] == 0
    for rollouts, wanted in zip(found.results, plain, strict=True):
        for rollout, other in zip(rollouts, wanted, strict=True):
            np.testing.assert_array_equal(rollout.token_ids, other.token_ids)
            np.testing.assert_array_equal(rollout.sampled, other.sampled)


def test_a_rollout_cannot_be_chosen_as_a_trunk(scripted_tool, session, params, requests):
    used = branching(scripted_tool, session, 1.0)
    with pytest.raises(ValueError, match="cannot be chosen as a trunk"):
        sample_branching(used, params, requests[:1], lambda i, rollouts, wait: [0], lambda ended: None)
