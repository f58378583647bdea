"""Texts of answers as their tokens come: their parts add up, and end where a stop text begins."""

from __future__ import annotations

import itertools
import random

import pytest

from fr3e_jax.serving.answer_text import AnswerText


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids, *, special_tokens=False):
        return bytes(ids).decode("utf-8", "replace")


def parts(content: bytes, stops, lengths, retained=b""):
    text, cuts = AnswerText(Bytes(), stops, retained), [0, *itertools.accumulate(lengths), len(content)]
    pieces = [content[a:b] for a, b in itertools.pairwise(cuts) if a < len(content)] or [b""]
    found = [text.add(piece, last=i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return text, found


@pytest.mark.parametrize("stops", [(), ("答",), ("aa", "ab a"), ("b答", "a")])
def test_parts_add_up_to_the_text_before_the_first_stop_text(stops):
    """For texts with characters of several bytes, and with bytes that are no text, in parts of any lengths."""
    draw = random.Random(0)
    for _ in range(300):
        content = b"".join(draw.choices([b"a", b"b", b" ", "答".encode(), b"\xe7", b"\xad"], k=draw.randrange(14)))
        text, found = parts(content, stops, [draw.randrange(4) for _ in content])
        whole = next(
            (content[:n].decode("utf-8", "replace") for n in range(len(content) + 1) if ends(content[:n], stops)),
            content.decode("utf-8", "replace"),
        )
        places = [whole.find(stop) for stop in stops if stop in whole]
        assert "".join(found) == whole[: min(places, default=len(whole))]
        assert text.stopped == bool(places)
        if places:
            assert len(text.token_ids) == next(n for n in range(len(content) + 1) if ends(content[:n], stops))


def ends(content: bytes, stops) -> bool:
    text = content.decode("utf-8", "replace")
    return any(stop in text for stop in stops)


def test_what_may_begin_a_stop_text_waits():
    assert parts(b"xabyab", ["abc"], [3, 1])[1] == ["x", "aby", "ab"]


def test_a_stop_text_and_a_character_may_begin_in_the_kept_tokens():
    text, found = parts(b"cd", ["bc"], [1], retained=b"ab")
    assert (text.retained, "".join(found), text.stopped) == ("ab", "", True)
    text, found = parts(b"\xad\x94x", (), [1], retained=b"a\xe7")
    assert (text.retained, "".join(found)) == ("a", "答x")
    assert parts(b"x", ["a"], [], retained=b"aa")[1] == ["x"]  # it stood there before
