"""Prompts prepared ahead: the same ones in the same order; the position counts only prompts handed out."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from fr3e_jax.data.stream import PromptStream
from fr3e_jax.data.task import Problem
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.runs.background import Background


@pytest.fixture
def short_and_long(session, tiny_run):
    """A task with some prompts that are too long, and the session that has it."""

    class Mixed:
        name = "mixed"

        def problems(self, split):
            return [Problem(f"p{n}", "1" * (12 if n % 3 == 0 else 1 + n % 7) + "=", "") for n in range(40)]

    return dataclasses.replace(tiny_run.changed(session, data__max_prompt_tokens=9), task=Mixed())


def feed_of(session, count: int, background: Background | None) -> PromptFeed:
    return PromptFeed(session.task.problems("train"), session.texts, session.config.data, count, background)


def settled(background: Background) -> None:
    """Wait until the background has done all earlier calls."""
    background.call(lambda: None).result()


@pytest.mark.parametrize("ahead", [True, False])
def test_the_feed_gives_the_prompts_of_the_stream(short_and_long, ahead):
    session = short_and_long
    stream = PromptStream(session.task.problems("train"), session.config.data.seed, session.texts.prompt_ids, 9)
    with Background() as background:
        feed = feed_of(session, 5, background if ahead else None)
        for _ in range(12):
            wanted, found = stream.next(5), feed.next()
            settled(background)
            assert [(p.position, p.problem) for p in found] == [(p.position, p.problem) for p in wanted]
            assert all(p.token_ids.tolist() == session.texts.codec.encode(p.problem.prompt) for p in found)
            assert feed.state_dict() == {"position": stream.position, "dropped_too_long": stream.dropped_too_long}
            assert feed.problem_at(wanted[2].position) == wanted[2].problem
    assert feed.dropped_too_long > 10


def test_each_prompt_is_encoded_once_for_each_time_it_is_handed_out(short_and_long, monkeypatch):
    session, encoded = short_and_long, Counter()
    encode = session.texts.codec.encode
    monkeypatch.setattr(session.texts.codec, "encode", lambda text: encoded.update([text]) or encode(text))
    feed = feed_of(session, 20, None)
    found = [prompt for _ in range(3) for prompt in feed.next()]
    assert {text: count for text, count in encoded.items() if len(text) <= 9} == Counter(
        p.problem.prompt for p in found
    )
    assert encoded["1" * 12 + "="] == 14  # the 14 problems that are too long share a text


def test_a_feed_continues_from_the_state_of_another(short_and_long):
    with Background() as background:
        first = feed_of(short_and_long, 4, background)
        for _ in range(3):
            first.next()
        settled(background)
        second = feed_of(short_and_long, 4, background)
        second.next()
        second.load_state_dict(first.state_dict())
        for _ in range(4):
            assert [p.position for p in second.next()] == [p.position for p in first.next()]
            assert second.state_dict() == first.state_dict()


def test_a_prompt_that_cannot_be_prepared_fails_in_the_round_that_needs_it(session):
    fifth = PromptStream(range(6), session.config.data.seed, lambda _: [1], 9).problem_at(4)

    class Odd:
        def problems(self, split):
            return [Problem(f"p{n}", "é=" if n == fifth else "1=", "") for n in range(6)]

    with Background() as background:
        feed = feed_of(dataclasses.replace(session, task=Odd()), 3, background)
        assert len(feed.next()) == 3
        settled(background)
        with pytest.raises(ValueError, match="é"):
            feed.next()
        assert feed.position == 3
