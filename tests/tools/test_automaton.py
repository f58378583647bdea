"""The table reports a complete call exactly where the text has the two marks, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fr3e_jax.tools.automaton import call_table, stop_table

MARKS = [("<<", "="), ("aab", "ab"), ("```py\n", "\n```"), ("(", "("), ("abab", "a"), ("【", "】"), ("答", "筑")]


def by_search(begin: bytes, end: bytes, text: bytes) -> bool:
    start = text.find(begin)
    return start >= 0 and text.find(end, start + len(begin)) >= 0


@pytest.mark.parametrize(("begin", "end"), MARKS)
@given(data=st.data())
def test_call_is_complete_where_search_finds_both_marks(begin, end, data):
    text = data.draw(st.text(sorted(set(begin + end + "xé")), max_size=30)).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))  # tokens cut marks, and characters
    tokens = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    table = call_table(begin, end, tokens)
    for length in range(len(tokens) + 1):
        is_done = table.run(np.arange(length)) == table.done
        assert is_done == by_search(begin.encode(), end.encode(), b"".join(tokens[:length]))


def test_run_split_anywhere_ends_in_the_same_state():
    table = call_table("aab", "ab", [b"a", b"b", b"ab", b"ba"])
    tokens = [0, 0, 2, 3, 2]
    for cut in range(len(tokens)):
        assert table.run(tokens[cut:], table.run(tokens[:cut])) == table.run(tokens)


def test_stop_token_completes_no_call_and_turns_recognition_off():
    table = call_table("(", ")", [b"(", b")", b"1"], stops=[1])
    assert table.run([0, 2, 1]) == table.off == table.run([0, 2, 1, 0, 1])


def test_no_token_leaves_off_or_done():
    table = call_table("(", ")", [b"(", b")", b""])
    assert np.all(table.next[table.off] == table.off) and np.all(table.next[table.done] == table.done)
    np.testing.assert_array_equal(table.next[:2, 2], [0, 1])  # a token without a text changes nothing


@pytest.mark.parametrize(("end", "done"), [("", [2]), ("b", [1, 2])])
def test_turn_ends_with_a_stop_token_and_with_its_mark(end, done):
    table = call_table("", end, [b"a", b"ab", b"</s>"], stops=[2])
    assert [token for token in range(3) if table.run([0, token]) == table.done] == done


STOPS = [["ab"], ["aa", "aab"], ["答"], ["abab", "b答a"], ["a b", "\n\n"], ["xab", "a"]]


@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.parametrize(("begin", "end"), [("", ""), ("(", ")"), ("aab", "ab")])
@given(data=st.data())
def test_a_stop_text_or_a_call_is_complete_where_search_finds_it_first(stops, begin, end, data):
    text = data.draw(st.text(sorted(set("".join(stops) + begin + end + "é")), max_size=30)).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    tokens = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    table = call_table(begin, end, tokens, stop_texts=stops) if begin else stop_table(stops, tokens)
    states = [table.stop, table.done]
    completed = next(
        (
            index
            for length in range(len(text) + 1)
            for index, complete in enumerate(
                [
                    any(stop.encode() in text[:length] for stop in stops),
                    bool(begin) and by_search(begin.encode(), end.encode(), text[:length]),
                ]
            )
            if complete
        ),
        None,
    )
    state = table.run(np.arange(len(tokens)))
    assert state < table.stop if completed is None else state == states[completed]


def test_a_stop_text_is_recognised_after_the_last_call_and_ends_a_turn():
    table = call_table("(", ")", [b"(", b")", b"EN", b"D"], stop_texts=["END"])
    assert table.run([0, 1]) == table.done and table.run([2, 3], table.off) == table.stop
    assert table.run([0, 1], table.off) == table.off
    turns = call_table("", ";", [b"a", b";", b"EN", b"D."], stop_texts=["END"])
    assert turns.run([0, 1]) == turns.run([2, 3]) == turns.done and turns.run([3, 2]) < turns.stop
