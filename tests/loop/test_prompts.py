"""The prompts of a run: those of the stream, in its order, from any saved position on."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest

from fr3e_jax.data.stream import PromptStream
from fr3e_jax.data.task import Problem
from fr3e_jax.loop.evaluate import summary_of


@pytest.fixture
def short_and_long(session, tiny_run):
    """A task with some prompts that are too long, and the session that has it."""

    class Mixed:
        name = "mixed"

        def problems(self, split):
            return [Problem(f"p{n}", "1" * (12 if n % 3 == 0 else 1 + n % 7) + "=", "") for n in range(40)]

    return dataclasses.replace(tiny_run.changed(session, data__max_prompt_tokens=9), task=Mixed())


def feed_of(session) -> PromptStream:
    return session.prompt_stream()


def test_the_feed_gives_the_prompts_of_the_stream_in_rounds_of_any_size(short_and_long):
    session = short_and_long
    stream = PromptStream(session.task.problems("train"), session.config.data.seed, session.texts.prompt_ids, 9)
    feed = feed_of(session)
    for count in (5, 1, 4, 2, 3) * 8:
        wanted, found = stream.take(count), feed.take(count)
        assert [(p.position, p.problem) for p in found] == [(p.position, p.problem) for p in wanted]
        assert all(p.token_ids.tolist() == session.texts.codec.encode(p.problem.prompt) for p in found)
        counts = {"dropped_too_long": stream.dropped_too_long, "dropped_unspeakable": 0}
        assert feed.state_dict() == {"position": stream.position} | counts
        assert feed.problem_at(wanted[0].position) == wanted[0].problem
        again = feed_of(session)
        again.load_state_dict(json.loads(json.dumps(feed.state_dict())))
        assert again.take(1)[0].position >= feed.position, "the state is that after the prompts handed out"
    assert feed.dropped_too_long > 10


def test_each_prompt_is_encoded_once_for_each_time_it_is_handed_out(short_and_long, monkeypatch):
    session, encoded = short_and_long, Counter()
    encode = session.texts.codec.encode
    monkeypatch.setattr(session.texts.codec, "encode", lambda text: encoded.update([text]) or encode(text))
    feed = feed_of(session)
    found = [prompt for _ in range(3) for prompt in feed.take(20)]
    assert {text: count for text, count in encoded.items() if len(text) <= 9} == Counter(
        p.problem.prompt for p in found
    )
    assert encoded["1" * 12 + "="] == 14  # the 14 problems that are too long share a text


class Unspeakable:
    """Every fifth prompt has a character that the embedded tokenizer lacks; every seventh, half a surrogate pair."""

    name = "unspeakable"

    def problems(self, split):
        return [Problem(f"p{n}", f"{n}" + ("é" if n % 5 == 0 else "\ud800" * (n % 7 == 0)), "") for n in range(30)]


UNSPEAKABLE = {f"p{n}" for n in range(30) if n % 5 == 0 or n % 7 == 0}


def test_prompts_that_cannot_be_encoded_are_dropped_counted_and_named_each_time(session):
    feed = feed_of(dataclasses.replace(session, task=Unspeakable()))
    found, named = [], []
    while feed.position < 60:
        found += feed.take(4)
        named += feed.complaints
    assert not {prompt.problem.id for prompt in found} & UNSPEAKABLE
    assert feed.position == len(found) + len(named) and feed.dropped_unspeakable == len(named)
    assert feed.metrics() == {"data/dropped_too_long": 0, "data/dropped_unspeakable": len(named)}
    for n in (5, 7):
        assert (
            sum(f"is dropped: problem 'p{n}': character {'é' if n == 5 else chr(0xD800)!r} at" in x for x in named) == 2
        )


def test_a_feed_with_dropped_prompts_continues_from_any_state(session):
    twin = dataclasses.replace(session, task=Unspeakable())
    whole = feed_of(twin)
    states, expected = [whole.state_dict()], []
    for _ in range(12):
        expected.append([(p.position, p.problem.id) for p in whole.take(3)])
        states.append(whole.state_dict())
    for start in (1, 4, 9):
        again = feed_of(twin)
        again.load_state_dict(states[start])
        for step in range(start, 12):
            assert [(p.position, p.problem.id) for p in again.take(3)] == expected[step]
            assert again.state_dict() == states[step + 1]


def test_data_without_a_prompt_that_can_be_encoded_is_an_error(session):
    class Nothing:
        def problems(self, split):
            return [Problem(f"p{n}", "é=", "") for n in range(6)]

    feed = feed_of(dataclasses.replace(session, task=Nothing()))
    with pytest.raises(
        ValueError, match="6 prompts in a row cannot be encoded; the first of them is problem 'p.': cha"
    ):
        feed.take(3)


def test_only_the_first_of_many_dropped_prompts_are_named():
    lines = summary_of([f"problem 'p{n}'" for n in range(9)])
    assert lines[0] == "9 prompts of the held-out data cannot be encoded and are dropped:"
    assert lines[1:] == [*(f"  problem 'p{n}'" for n in range(5)), "  and 4 more"]
    assert summary_of([]) == []
