"""What a run learned first, and what is still hard, on numbers worked out by hand."""

from collections import Counter

import pytest

from fr3e_jax.studies.reports.what_was_learned import (
    changes,
    half_change,
    held_out_sentences,
    solved_since,
    telling_words,
)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0] * 6 + [1] * 14, 7),
        ([4, 3, 2, 1] + [0] * 6, 3),
        ([0, 1, 0, 1, 0, 1, 0, 1, 0, 1], None),  # noise
        ([1] * 10, None),
        ([0, 0, 1, 1, 1], None),  # too short for a course
        ([None, 0, float("nan"), 0, 0, 0, 0] + [1] * 14, 8),
    ],
)
def test_half_of_a_change_is_told_where_the_change_is_clear(values, step):
    training = [{"step": n + 1, "m": value} for n, value in enumerate(values)]
    assert half_change(training, "m") == step


def test_changes_come_in_their_order():
    late, early = [0.0] * 15 + [1.0] * 5, [2.0] * 5 + [1.0] * 15
    training = [
        {"step": n, "reward/mean": a, "entropy/mean": b} for n, (a, b) in enumerate(zip(late, early, strict=True))
    ]
    assert changes(training) == [("entropy/mean", "entropy", 5), ("reward/mean", "reward", 15)]
    assert changes([]) == []


@pytest.mark.parametrize(
    ("right", "since"),
    [
        ({0: False, 4: True, 8: True}, 4),
        ({8: True, 4: False, 0: True}, 8),
        ({0: True, 4: True}, 0),
        ({0: True, 4: False}, None),
        ({}, None),
    ],
)
def test_a_problem_is_solved_since_the_last_wrong_answer(right, since):
    assert solved_since(right) == since


def test_words_that_go_with_success_are_told_and_chance_is_not():
    questions = [f"{n}-1-{'1-' * (n % 3)}2" for n in range(60)]
    shares = [1 - (n % 3) / 2 for n in range(60)]
    words = dict(telling_words(questions, shares))
    assert words["-"] == pytest.approx(-1) and all(correlation < 0 for correlation in words.values())
    assert telling_words(questions, [0.5] * 60) == telling_words(questions[:10], shares[:10]) == []
    assert telling_words([], []) == []
    alternating = [float(n // 3 % 2) for n in range(60)]
    assert telling_words(questions, alternating) == []


def test_sentences_say_what_was_learned_when_and_why_the_rest_is_wrong():
    courses = ["learned"] * 3 + ["unsolved"] * 2 + ["forgotten", "solved"]
    since = [8, 4, 4, None, None, None, 0]
    told = held_out_sentences(
        since, courses, [("-", -0.5), ("", 0.4)], Counter({"not the gold answer": 300, "cut": 100, "x": 1})
    )
    assert [one["text"] for one in told] == [
        "learned, by the greedy answer: 3 problems (2 since step 4, 1 since step 8)",
        "forgotten, by the greedy answer: 1 problem",
        "still hard: 2 problems never solved; questions with more “-” are solved less often; "
        "questions with more words are solved more often",
        "wrong samples at the last evaluation: 75% not the gold answer, 25% cut",
    ]
    assert told[0]["place"] == {"view": "held-out", "filter": "learned", "order": "earliest"}
    assert held_out_sentences([0], ["solved"], [], Counter()) == []
    many = held_out_sentences([1, 2, 3, 4, 5, 6], ["learned"] * 6, [], Counter())
    assert many[0]["text"].endswith("1 since step 4, 2 later)")
