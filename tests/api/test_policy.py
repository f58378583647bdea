"""A policy in the hand: samples, branches from cached prefixes, scores."""

import dataclasses
import json

import numpy as np
import pytest
from tiny_runs import widened

import fr3e_jax as fr3e
from fr3e_jax.api.policy import Completion, ScoredResponse, State
from fr3e_jax.configuration.load import default_config
from fr3e_jax.session.session import open_texts


@pytest.fixture(scope="module")
def policy(finished_run):
    return fr3e.load_policy(finished_run)


@pytest.fixture(scope="module")
def answers(policy):
    return policy.sample(["1+2", "2+2"], n=3, seed=7)


def test_samples_come_prompt_by_prompt_with_their_figures(policy, answers):
    assert [one.prompt for one in answers] == ["1+2"] * 3 + ["2+2"] * 3
    for one in answers:
        assert len(one.token_ids) == len(one.logprobs) == len(one.entropies) == len(one)
        assert one.text == policy.texts.response_text(one.token_ids, one.finished)
        assert (one.logprobs <= 0).all() and (one.entropies >= 0).all()


def test_a_seed_repeats_and_calls_without_one_differ(policy, answers):
    again = policy.sample(["1+2", "2+2"], n=3, seed=7)
    assert [one.token_ids.tolist() for one in again] == [one.token_ids.tolist() for one in answers]
    first, second = (policy.sample("1+2", n=8) for _ in range(2))
    assert [one.text for one in first] != [one.text for one in second]


def test_branches_of_an_answer_with_a_tool_know_what_the_tool_wrote(tiny_run, tmp_path):
    (tmp_path / "tool.py").write_text("def reply(call):\n    return '+-*'[: 1 + len(call) % 3]\n")
    marks = {"tools__begin": "5", "tools__end": "5", "tools__result": "({output}3=", "tools__max_output_tokens": 4}
    tool = {"tools__kind": f"{tmp_path}/tool.py:reply", "tools__max_calls": 1} | marks
    policy = fr3e.Policy(tiny_run.config(**tool, explore__enabled=False, rollout__max_response_tokens=16))
    policy.weights = widened(policy.weights)
    answers = policy.sample(["1+2=", "33=", "4*5=", "9/3="], n=1, temperature=0.0)
    answer = next(one for one in answers if "(" in one.text)
    begin, end = answer.text.index("("), answer.text.index("=") + 1
    chosen = [k for k in range(1, len(answer)) if not begin <= k < end]
    for state in policy.branch(answer, chosen, n=1, temperature=0.0):
        np.testing.assert_array_equal(state.completions[0].token_ids, answer.token_ids)
    forks = [state.fork for state in policy.branch(answer, "uniform", anchors=8)]
    assert forks and set(forks) <= set(chosen)


def test_greedy_answers_are_equal(policy):
    texts = {one.text for one in policy.sample("1+2", n=4, temperature=0.0)}
    assert len(texts) == 1


def test_scores_are_the_samplers_own_figures(policy, answers):
    ended = [one for one in answers if one.finished]
    assert ended  # the untrained policy ends most answers
    scored = policy.score([one.prompt for one in ended], [one.text for one in ended])
    for one, found in zip(ended, scored, strict=True):
        np.testing.assert_array_equal(found.token_ids, one.token_ids)
        np.testing.assert_allclose(found.logprobs, one.logprobs, atol=1e-5)
        np.testing.assert_allclose(found.entropies, one.entropies, atol=1e-5)


USER, SYSTEM = {"role": "user", "content": "1+2"}, {"role": "system", "content": "10"}


def test_messages_are_prompts_in_every_call(policy, chatting, monkeypatch):
    monkeypatch.setattr(policy, "texts", open_texts(default_config(chatting)))

    def prompts(answers):
        return [policy.texts.codec.decode(one._prompt_ids, special_tokens=True) for one in answers]

    several = policy.sample([[USER], "2", [SYSTEM, USER], [USER, {"role": "assistant", "content": "2"}]], seed=1)
    assert prompts(several) == ["(1+2)", "(2)", "%10(1+2)", "(1+2)2"]
    assert several[2].prompt == "system: 10\n\nuser: 1+2"
    batch = policy.sample([{"messages": [USER]}, {"messages": [SYSTEM, USER]}], seed=1)
    assert [answer.prompt for answer in batch] == [several[0].prompt, several[2].prompt]
    for single in ([SYSTEM, USER], (SYSTEM, USER), {"messages": [SYSTEM, USER]}, json.dumps([SYSTEM, USER])):
        assert prompts(policy.sample(single, n=2, seed=1)) == ["%10(1+2)"] * 2
    (answer,) = policy.sample([USER], seed=2)
    for state in policy.branch(answer, at=[0]):
        assert prompts(state) == ["(1+2)"]
    scored = policy.score([SYSTEM, USER], ["3", "4"])
    apart = [*policy.score([[SYSTEM, USER]], "3"), *policy.score([[SYSTEM, USER]], "4")]
    for one, other in zip(scored, apart, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-6)


def longest(answers):
    return max(answers, key=len)


def test_a_branch_begins_with_the_base_and_keeps_its_figures(policy, answers):
    base = longest(answers)
    states = policy.branch(base, at=[1, len(base) - 1], n=2)
    assert [state.fork for state in states] == [1, len(base) - 1]
    for state in states:
        assert len(state) == 2
        for one in state:
            assert one.fork == state.fork and one.prompt == base.prompt
            np.testing.assert_array_equal(one.token_ids[: one.fork], base.token_ids[: one.fork])
            np.testing.assert_array_equal(one.logprobs[: one.fork], base.logprobs[: one.fork])
            assert len(one) > one.fork


def test_branching_from_a_cached_answer_prefills_nothing(policy):
    counts = policy.sampler.engine.take_counts
    base = longest(policy.sample("1+2", n=4, seed=1))
    counts()
    states = policy.branch(base, at="entropy", anchors=2, n=2)
    assert counts().prefill_positions == 0
    deeper = next(one for state in states for one in state if len(one) > 1)
    policy.branch(deeper, at=[1], n=1)
    policy.branch(base, at="uniform", anchors=2, n=1)  # the cache was not consumed
    assert counts().prefill_positions == 0


def test_without_its_cache_a_branch_is_the_same_and_prefills_once(policy):
    kept, dropped = (longest(policy.sample("1+2", n=4, seed=1, keep_caches=keep)) for keep in (True, False))
    assert dropped._trunk is None
    policy.sampler.engine.take_counts()
    texts = [
        [one.text for state in policy.branch(base, at="entropy", anchors=2, n=3, seed=5) for one in state]
        for base in (kept, dropped, dropped)
    ]
    assert texts[0] == texts[1] == texts[2]
    whole = len(policy.texts.prompt_ids("1+2")) + len(dropped)
    assert policy.sampler.engine.take_counts().prefill_positions == whole


@pytest.mark.parametrize("at", ["entropy", "logprob", "gradient", "uniform", "random"])
def test_every_rule_finds_places_in_rising_order(policy, answers, at):
    states = policy.branch(longest(answers), at=at, anchors=2, n=1)
    forks = [state.fork for state in states]
    assert forks == sorted(set(forks)) and 1 <= len(forks) <= 2 and min(forks) >= 1


def test_entropy_anchors_are_the_tokens_of_highest_entropy(policy, answers):
    base = longest(answers)
    (state,) = policy.branch(base, at="entropy", anchors=1, n=1)
    assert state.fork == 1 + int(np.argmax(base.entropies[1:]))
    assert state.entropy == pytest.approx(base.entropies[state.fork])


def test_an_answer_of_one_token_has_no_state_of_its_own(policy):
    short = policy.sample("1+2", n=1, max_tokens=1)[0]
    assert len(short) == 1
    assert policy.branch(short, at="entropy", n=2) == []
    (state,) = policy.branch(short, at=[0], n=2)
    assert state.fork == 0 and len(state) == 2


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda p, a: p.sample("", n=1), "prompt 0 is empty"),
        (lambda p, a: p.sample("1", n=0), "n is 0; expected at least 1"),
        (lambda p, a: p.sample("1", temperature=-1.0), "temperature is -1.0; expected a number at least 0"),
        (lambda p, a: p.sample("1", top_p=0.0), "top_p is 0.0"),
        (lambda p, a: p.sample("1", max_tokens=10**6), "positions"),
        (lambda p, a: p.sample("1", seed=-1), "seed is -1"),
        (lambda p, a: p.sample("é"), "é"),
        (lambda p, a: p.branch(a, at="entropie"), "expected one of entropy"),
        (lambda p, a: p.branch(a, at=[99]), "at names token 99; the answer has the tokens 0 to"),
        (lambda p, a: p.branch(a, at=[len(a) - 1], max_tokens=1), "beyond max_tokens=1"),
        (lambda p, a: p.score(["1", "2"], ["3"]), "2 prompts and 1 responses"),
        (lambda p, a: p.score("", "3"), "prompt 0 is empty"),
        (lambda p, a: p.sample([[]]), "prompt 0 has no message"),
        (lambda p, a: p.sample(["1", 7]), "prompt 1 is 7; expected a text, or a list of messages"),
        (lambda p, a: p.sample([{"role": "usr", "content": "1"}]), "prompt 0 has in message 0 the role 'usr'"),
        (lambda p, a: p.sample([SYSTEM, USER]), "data.template=plain is for one text, .* 2 messages; set data.templ"),
    ],
)
def test_mistakes_are_named(policy, answers, call, message):
    with pytest.raises(fr3e.ConfigError, match=message):
        call(policy, longest(answers))


def test_a_checkpoint_and_a_step_are_the_same_policy(finished_run, policy):
    by_path = fr3e.load_policy(finished_run / "checkpoints" / "4")
    assert by_path.step == policy.step == 4
    ask = dict(n=2, seed=3)
    assert [a.text for a in by_path.sample("1+2", **ask)] == [a.text for a in policy.sample("1+2", **ask)]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: path / "nothing", "is no directory"),
        (lambda path: path, "has neither config.json"),
    ],
)
def test_directories_without_a_policy_are_named(tmp_path, make, message):
    with pytest.raises(fr3e.ConfigError, match=message):
        fr3e.load_policy(make(tmp_path))


def test_completions_can_be_copied(answers):
    assert dataclasses.replace(answers[0], text="other").text == "other"


def test_results_are_spelled_in_one_line():
    base = Completion("1+1", "2+0", *[np.ones(3)] * 3, finished=True)
    branched = dataclasses.replace(base, finished=False, fork=1)
    assert repr(base) == "Completion('1+1': '2+0', 3 tokens)"
    assert repr(branched) == "Completion('1+1': '2+0', 3 tokens, branched at token 1, cut at max_tokens)"
    assert repr(State(1, "+", 0.5, [branched])) == "State(token 1 '+', entropy 0.5 nats, 1 completion)"
    assert repr(ScoredResponse(*[np.ones(2)] * 3)) == "ScoredResponse(2 tokens, log-prob 2, mean entropy 1 nats)"
