"""A rollout that calls a tool follows the network token by token, in any slot and lane and beside any others."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from called_rollouts import assert_figures_of_one_pass, assert_same_rollouts, in_two_processes

from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Branch, Rollout, TrunkRequest
from fr3e_jax.rollouts.tool_calls import ToolCalls, answer_spans, answered_calls
from fr3e_jax.tools.answer import Answer


def engine_of(session, **changes) -> RolloutEngine:
    shapes = Shapes(**{"slots": 2, "lanes": 3, "chunk": 4} | changes)
    return RolloutEngine(session.sampler.engine.programs, shapes, seed=7)


def sampled(session, params, toolbox, requests, select=None, **changes):
    engine, ended = engine_of(session, **changes), []
    results, promoted = engine.sample(params, requests, select, ended.extend, ToolCalls(toolbox, requests))
    assert sorted((i, b) for i, b, _ in ended) == [
        (i, b) for i, r in enumerate(requests) for b in range(len(r.branches))
    ]
    return SimpleNamespace(results=results, promoted=promoted, counts=engine.counts)


@pytest.fixture(scope="module")
def toolbox(scripted_tool, session):
    return scripted_tool.toolbox_of(session)


@pytest.fixture(scope="module")
def requests(scripted_tool, session):
    return scripted_tool.requests_of(session)


@pytest.fixture(scope="module")
def expected(session, params, toolbox, requests):
    return sampled(session, params, toolbox, requests, select=lambda i, rollouts, wait: [0, 2])


def answers_by_reading(scripted_tool, session, rollout: Rollout) -> np.ndarray:
    """Mask of the tokens that a tool must have written, by walking through the text; asserts their ids."""
    codec, written, text, calls, at = session.texts.codec, np.zeros(len(rollout.token_ids), bool), "", 0, 0
    while at < len(rollout.token_ids):
        text += codec.decode([rollout.token_ids[at]], special_tokens=True)
        at += 1
        _, begun, rest = text.partition(scripted_tool.BEGIN)
        call, ended, _ = rest.partition(scripted_tool.END)
        if begun and ended and calls < scripted_tool.MOST_CALLS:
            body = scripted_tool.reply(call).text
            shown = "..." if len(body) > scripted_tool.MOST_TOKENS else body
            answer = codec.encode(f"({shown}{scripted_tool.AFTER}")
            room = len(rollout.token_ids) - at
            np.testing.assert_array_equal(rollout.token_ids[at : at + len(answer)], answer[:room])
            written[at : at + len(answer)] = True
            at, text, calls = at + len(answer), "", calls + 1
    return written


def test_answers_stand_after_their_calls_and_nowhere_else(scripted_tool, session, expected):
    calls = 0
    for row in expected.results:
        for rollout in row:
            written = answers_by_reading(scripted_tool, session, rollout)
            np.testing.assert_array_equal(~rollout.sampled, written)
            assert (rollout.loss_mask is None) == (not written.any())
            calls += len(answer_spans(rollout.tool_written))
    assert calls > 8


def test_logprobs_and_entropies_are_those_of_one_forward_pass_answers_included(
    session, params, requests, expected, tiny_run
):
    assert_figures_of_one_pass(requests, expected.results, session, params, tiny_run)


def test_slots_lanes_and_slow_tools_change_no_token(scripted_tool, session, params, requests, expected):
    slow = scripted_tool.toolbox_of(session, at_once=False)
    assert_same_rollouts(sampled(session, params, slow, requests, slots=1, lanes=5), expected)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
def test_chunks_and_growing_rings_change_no_token(scripted_tool, session, params, at_once):
    toolbox, requests = scripted_tool.toolbox_of(session, at_once=at_once), scripted_tool.requests_of(session, cap=40)
    expected = sampled(session, params, scripted_tool.toolbox_of(session), requests)
    for changes in ({"slots": 6, "lanes": 4, "chunk": 16}, {"chunk": 1, "lanes": 1}):
        assert_same_rollouts(sampled(session, params, toolbox, requests, **changes), expected)


def test_no_position_is_computed_twice_and_answers_are_not_counted_as_sampled(requests, expected):
    rollouts = [rollout for row in expected.results for rollout in row]
    written = sum(int((~rollout.sampled).sum()) for rollout in rollouts)
    assert expected.counts.prefill_positions == sum(len(request.token_ids) for request in requests)
    assert expected.counts.tool_tokens == written > 0
    assert expected.counts.sampled_tokens == sum(len(rollout.token_ids) for rollout in rollouts) - written


def test_calls_beyond_max_calls_are_ordinary_text(scripted_tool, session, params, requests, expected):
    once = sampled(session, params, scripted_tool.toolbox_of(session, max_calls=1), requests)
    used_up = 0
    for row, wanted_row in zip(once.results, expected.results, strict=True):
        for rollout, wanted in zip(row, wanted_row, strict=True):
            first, second = ([*answer_spans(wanted.tool_written), None, None])[:2]
            assert answer_spans(rollout.tool_written) == [first] * (first is not None)
            same = len(wanted.token_ids) if second is None else second[0]
            np.testing.assert_array_equal(rollout.token_ids[:same], wanted.token_ids[:same])
            used_up += second is not None
    assert used_up > 2


def test_a_continued_rollout_reads_on_as_it_would_have(session, params, toolbox, requests, expected):
    """Greedy from any state of a greedy rollout, in and after a call too, gives the rest, answers included.

    So it does if the token after the state is given, as `fr3e intervene` gives it.
    """
    again, rests = [], []
    for i, row in enumerate(expected.results):
        whole, trunk = row[0], expected.promoted[i, 0]
        after_calls = np.append(False, whole.sampled[:-1])  # before an answer, too
        forks = [(k, ()) for k in np.flatnonzero(whole.sampled | after_calls).tolist() if k]
        forks += [(k, (int(whole.token_ids[k]),)) for k in np.flatnonzero(whole.sampled).tolist() if k]
        prompt = len(requests[i].token_ids)
        branches = [
            Branch(
                prompt + k,
                (1, len(given), i, k),
                requests[i].branches[0].max_tokens - k,
                requests[i].branches[0].sampling,
                whole.head(k),
                given,
            )
            for k, given in forks
        ]
        again.append(TrunkRequest(dataclasses.replace(trunk), branches))
        rests.append([(whole, k, len(given)) for k, given in forks])
    found = sampled(session, params, toolbox, again)
    assert found.counts.prefill_positions == 0
    prefixes = [branch.prefix for request in again for branch in request.branches]
    calling = [p for p, own in zip(prefixes, sum(found.results, []), strict=True) if own.tool_written is not None]
    assert any(toolbox.calls.run(answered_calls(prefix)[1]) > 0 for prefix in calling), "from within a call"
    assert any(len(answered_calls(prefix)[0]) == 1 for prefix in calling), "with one call used up"
    for row, wanted in zip(found.results, rests, strict=True):
        for rollout, (whole, k, given) in zip(row, wanted, strict=True):
            joined, free = whole.head(k).then(rollout), np.ones(len(whole.token_ids), bool)
            free[k : k + given] = False  # a given token is nobody's choice
            np.testing.assert_array_equal(joined.token_ids, whole.token_ids)
            np.testing.assert_array_equal(joined.sampled[free], whole.sampled[free])
            np.testing.assert_allclose(joined.entropies[free], whole.entropies[free], atol=1e-5)
            assert joined.finished == whole.finished


def first_call(expected) -> tuple[int, Rollout, int, int]:
    """A question, its greedy response, and where the first answer in it begins and ends."""
    index = next(i for i, row in enumerate(expected.results) if row[0].tool_written is not None)
    return index, expected.results[index][0], *answer_spans(expected.results[index][0].tool_written)[0]


def test_a_call_at_the_cap_gets_no_answer_and_an_answer_is_cut_there(session, params, expected, toolbox, requests):
    index, whole, start, end = first_call(expected)
    request, caps = requests[index], (start, start + 1, end)
    branches = [dataclasses.replace(request.branches[0], max_tokens=cap) for cap in caps]
    rollouts = sampled(session, params, toolbox, [dataclasses.replace(request, branches=branches)]).results[0]
    for rollout, cap in zip(rollouts, caps, strict=True):
        np.testing.assert_array_equal(rollout.token_ids, whole.token_ids[:cap])
        np.testing.assert_array_equal(rollout.sampled, whole.sampled[:cap])
        assert not rollout.finished


def test_a_stop_token_ends_a_response_after_an_answer_but_not_within(session, params, expected, toolbox, requests):
    i, m, whole, start, end = next(
        (i, m, rollout, start, end)
        for i, row in enumerate(expected.results)
        for m, rollout in enumerate(row)
        for start, end in answer_spans(rollout.tool_written)
        if not np.isin(rollout.token_ids[end : end + 1], rollout.token_ids[:end]).all()
    )
    branch = requests[i].branches[m]
    of = lambda at: dataclasses.replace(branch.sampling, stop_ids=(int(whole.token_ids[at]),))
    branches = [dataclasses.replace(branch, sampling=of(at)) for at in (end, start)]
    request = dataclasses.replace(requests[i], branches=branches)
    stopped, going = sampled(session, params, toolbox, [request]).results[0]
    np.testing.assert_array_equal(stopped.token_ids, whole.token_ids[: end + 1])
    assert stopped.finished and stopped.sampled[-1]
    np.testing.assert_array_equal(going.token_ids[: end + 1], whole.token_ids[: end + 1])


def test_a_tool_that_hangs_raises_or_cannot_be_spelled_becomes_text(scripted_tool, session, requests):
    release, codec, keys = threading.Event(), session.texts.codec, [(0, branch) for branch in range(4)]

    def bad(call: str) -> Answer:
        if call == "1":
            release.wait(60)
        if call == "2":
            raise OSError("no room")
        return Answer({"3": "é7", "4": "123456"}[call], "answered")

    toolbox = scripted_tool.toolbox_of(session, run=bad, at_once=False, deadline=0.05, seconds=2.0)
    calls, answered = ToolCalls(toolbox, requests), []
    read = lambda key, answer: answered.append(answer[:2]) or ToolCalls._read(calls, key, answer)
    calls._read = read
    for key in keys:
        calls.begin(key)
        calls.ask(key, np.array(codec.encode(f"5{key[1] + 1}5"), np.int32))
    texts = [codec.decode(answer[0], special_tokens=True) for answer in calls.answers(keys).values()]
    release.set()
    assert answered[:2] == [("TimeoutError: no end after 2 seconds", "timeout"), ("OSError: no room", "error")]
    assert texts[2:] == [f"({text}{scripted_tool.AFTER}" for text in ("7", "...")]
    counts = toolbox.take_counts()
    assert (counts["timeout"], counts["error"], counts["answered"]) == (1, 1, 2)


def test_marks_that_the_tokenizer_cannot_spell_are_refused(scripted_tool, session):
    with pytest.raises(ValueError, match="set tools.result to a text that it can spell"):
        scripted_tool.toolbox_of(session, before="<", after="]")


def test_processes_share_the_calls_and_read_the_same_answers(scripted_tool, session, requests):
    def answers(processes):
        run = lambda call: Answer(str(processes.index), "answered")
        calls = ToolCalls(scripted_tool.toolbox_of(session, processes, run), requests)
        keys = [(0, 0), (0, 1), (1, 1)]
        for key in keys:
            calls.begin(key)
            calls.ask(key, np.array(session.texts.codec.encode("35515"), np.int32))
        return [session.texts.codec.decode(answer[0]) for answer in calls.answers(keys).values()]

    assert in_two_processes(answers) == [["(03=", "(13=", "(03="]] * 2


def test_segments_and_spans_of_a_response():
    mask = np.array([0, 1, 1, 0, 0, 1, 0], bool)
    assert answer_spans(mask) == [[1, 3], [5, 6]] and answer_spans(None) == []
    zeros = np.zeros(7, np.float32)
    rollout = Rollout(np.arange(7, dtype=np.int32), zeros, zeros, zeros, finished=True, tool_written=mask)
    calls, begun = answered_calls(rollout.head(5))
    assert [(call.call_ids.tolist(), call.answer_ids.tolist()) for call in calls] == [([0], [1, 2])]
    assert begun.tolist() == [3, 4]
    assert rollout.head(7).finished and not rollout.head(6).finished
    again = rollout.head(2).then(Rollout(*(column[2:] for column in (rollout.token_ids, zeros, zeros, zeros)), True))
    assert again.tool_written.tolist() == [False, True] + [False] * 5
