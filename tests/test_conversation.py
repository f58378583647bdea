"""Messages become a question that verifiers read as a text and chat templates render; faulty ones are named."""

from __future__ import annotations

import copy
import json
import pickle
import re

import numpy as np
import pytest

from fr3e_jax.conversation import Conversation, gives_away, map_question, question_of
from fr3e_jax.problem import Problem

USER, SYSTEM = {"role": "user", "content": "1+2="}, {"role": "system", "content": "Be brief."}
ANSWER, THEN = {"role": "assistant", "content": "3"}, {"role": "user", "content": "2+2="}


def parts(*texts):
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1+2=", "1+2="),
        ([USER], "1+2="),
        (USER, "1+2="),
        ({"messages": [USER]}, "1+2="),
        ([{**USER, "name": None, "tool_calls": None}], "1+2="),  # as Parquet fills a row
        (parts("1+2", "Answer:"), "1+2\nAnswer:"),
        ([{"role": "user", "content": np.array([{"type": "text", "text": "x", "image": None}], dtype=object)}], "x"),
        ([SYSTEM, USER], "system: Be brief.\n\nuser: 1+2="),
        (np.array([SYSTEM, USER], dtype=object), "system: Be brief.\n\nuser: 1+2="),  # as pandas reads Parquet
        (json.dumps([SYSTEM, USER], indent=2), "system: Be brief.\n\nuser: 1+2="),
        ((USER, ANSWER, THEN), "user: 1+2=\n\nassistant: 3\n\nuser: 2+2="),
        ([USER, ANSWER, {"role": "tool", "content": "4"}], "user: 1+2=\n\nassistant: 3\n\ntool: 4"),
        ([SYSTEM, {"role": "user", "content": " "}], ""),
        ('[{"role": "admin"}]', '[{"role": "admin"}]'),  # a question about JSON
        ('{"messages": [{"role": "user", "content": "x"}]} has which keys?',) * 2,
        ("[1, 2] is what?", "[1, 2] is what?"),
    ],
)
def test_texts_and_messages_are_questions(value, text):
    question = question_of(value)
    assert question == text and isinstance(question, str)
    for copied in (copy.deepcopy(question), pickle.loads(pickle.dumps(question)), question_of(question)):
        assert (copied, type(copied)) == (question, type(question))
        assert getattr(copied, "messages", None) == getattr(question, "messages", None)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "has no message; expected at least one of the user"),
        (None, "is None; expected a text, or a list of messages"),
        (7, "is 7; expected a text, or a list of messages"),
        (["1+2=", "2+2="], "expected a text, or a list of messages"),
        ({"prompt": "x"}, "expected a text, or a list of messages"),
        ([SYSTEM], "has only messages of system; expected at least one of the user"),
        ([{"role": "human", "content": "x"}], "has in message 0 the role 'human'; nearest: user"),
        ([USER, {"role": "gpt", "content": "x"}], "has in message 1 the role 'gpt'; nearest: assistant"),
        ([{"role": "usr", "content": "x"}], "the role 'usr'; nearest: user"),
        ([{"role": "User", "content": "x"}], "the role 'User'; nearest: user"),
        ([{"role": None, "content": "x"}], "the role None; expected one of system, developer, user, assistant, tool"),
        ([{"role": ["user"], "content": "x"}], "the role ['user']"),
        ([{"from": "human", "value": "x"}], "has in message 0 the keys from, value; expected role and content"),
        ([{"role": "user"}], "has in message 0 the keys role; expected role and content"),
        ([{"role": "user", "content": None}], "the content None; expected a text or a list of text parts"),
        ([{"role": "user", "content": 7}], "the content 7; expected a text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "a part of type 'image_url'"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}], "a part of type 'image'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "the part {'type': 'text'}; expected"),
        ([USER, "2+2="], "has in message 1 '2+2='; expected a mapping with role and content"),
        ([USER, {**ANSWER, "tool_calls": [{"id": 1}]}], "has in message 1 tool_calls, which are not rendered"),
    ],
)
def test_faulty_messages_are_named_in_one_line(value, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)) as error:
        question_of(value)
    assert "\n" not in str(error.value)
    if not isinstance(value, str):
        with pytest.raises(ValueError, match=re.escape(complaint)):
            Problem("1", value, "3")


def test_a_problem_of_messages_has_their_text():
    assert Problem("1", [USER], "3") == Problem("1", "1+2=", "3")
    assert Problem("1", [SYSTEM, USER], "3").prompt.messages == (SYSTEM, USER)


def test_a_change_of_the_question_is_one_of_the_last_user_s_message():
    changed = map_question(Conversation([USER, ANSWER, THEN, ANSWER]), lambda text: f"<{text}>")
    assert changed.messages == (USER, ANSWER, {"role": "user", "content": "<2+2=>"}, ANSWER)
    assert map_question("1", lambda text: f"<{text}>") == "<1>"


@pytest.mark.parametrize(
    ("messages", "golds", "expected"),
    [
        ([USER, ANSWER], ["3"], True),
        ([USER, {"role": "assistant", "content": "It is $\\boxed{3}$."}], ["4", "3"], True),
        ([USER, {"role": "assistant", "content": "Let me think in 13 steps.\n<think>"}], ["3"], False),
        ([USER, ANSWER, THEN], ["3"], False),
        ([USER, ANSWER], [""], False),
    ],
)
def test_a_last_turn_of_the_assistant_may_have_the_answer_in_it(messages, golds, expected):
    assert gives_away(Conversation(messages), golds) == expected
