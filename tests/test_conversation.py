"""Messages become a question that verifiers read as a text and chat templates render; faulty ones are named."""

from __future__ import annotations

import copy
import json
import pickle
import re

import numpy as np
import pytest

from fr3e_jax.conversation import Conversation, map_question, question_of, without_answer
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
        (str([SYSTEM, USER]), "system: Be brief.\n\nuser: 1+2="),  # as pandas writes CSV
        (str(np.array([SYSTEM, USER], dtype=object)), "system: Be brief.\n\nuser: 1+2="),
        ("[{'role': 'user', 'content': ", "[{'role': 'user', 'content': "),
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
        ([{"role": "usr", "content": "x"}], "the role 'usr'; nearest: user"),
        ([{"role": None, "content": "x"}], "the role None; expected one of system, developer, user, assistant, tool"),
        ([{"role": ["user"], "content": "x"}], "the role ['user']"),
        ([{"from": "human", "text": "x"}], "has in message 0 the keys from, text; expected role and content"),
        ([{"role": "user"}], "has in message 0 the keys role; expected role and content"),
        ([{"role": "user", "content": None}], "the content None; expected a text or a list of text parts"),
        ([{"role": "user", "content": 7}], "the content 7; expected a text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "a part of type 'image_url'"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}], "a part of type 'image'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "the part {'type': 'text'}; expected"),
        ([USER, "2+2="], "has in message 1 '2+2='; expected a mapping with role and content"),
        ([USER, {**ANSWER, "tool_calls": [{"id": 1}]}], "has in message 1 the call {'id': 1}; expected a function"),
        ([USER, {"from": "function_call", "value": "add(1)"}], "has in message 1 the call 'add(1)'; expected"),
        ({"messages": [USER], "tools": "add"}, "has the tools 'add'; expected a list of schemas"),
        ({"messages": [USER], "tools": [1]}, "has the tools [1]; expected a list of schemas"),
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
    ("messages", "golds", "answered"),
    [
        ([USER, ANSWER], ["3"], "3"),
        ([USER, {"role": "assistant", "content": "It is $\\boxed{3}$."}], ["4", "3"], "It is $\\boxed{3}$."),
        ([SYSTEM, USER, ANSWER], ["3"], "3"),
        ([USER, {"role": "assistant", "content": "Let me think in 13 steps.\n<think>"}], ["3"], None),
        ([USER, ANSWER, THEN], ["3"], None),
        ([USER, ANSWER], [""], None),
    ],
)
def test_a_last_turn_of_the_assistant_that_has_the_answer_is_no_part_of_the_question(messages, golds, answered):
    question = Conversation(messages)
    rest = question_of(messages[:-1]) if answered else question
    assert without_answer(question, golds) == (rest, answered)


ADD = {"type": "function", "function": {"name": "add", "parameters": {}}}


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ([{"from": "system", "value": "Be brief."}, {"from": "human", "value": "1+2="}], (SYSTEM, USER)),
        ({"conversations": [{"from": "human", "value": "1+2="}, {"from": "gpt", "value": "3"}]}, (USER, ANSWER)),
        (json.dumps([{"from": "human", "value": "1+2="}, {"from": "gpt", "value": "3"}]), (USER, ANSWER)),
        ([{"role": "Human", "content": "1+2="}, {"role": "model", "content": "3"}], (USER, ANSWER)),
        ([USER, {"role": "function", "name": "f", "content": "3"}], (USER, {**ANSWER, "role": "tool", "name": "f"})),
        ([USER, {**ANSWER, "thinking": "I add.", "refusal": None}], (USER, {**ANSWER, "thinking": "I add."})),
    ],
)  # fmt: skip
def test_layouts_of_other_programs_are_messages(value, messages):
    assert question_of(value).messages == messages


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "assistant", "tool_calls": np.array([{"name": "add", "arguments": {"a": 1, "b": None}}])},
        {"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": '{"a": 1}'}},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
    ],
)  # fmt: skip
def test_calls_of_tools_have_their_arguments_as_templates_read_them(turn):
    question = question_of([USER, turn, {"role": "tool", "content": "3"}])
    (call,) = question.messages[1]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": {"a": 1}}
    assert '"arguments": {"a": 1}' in question  # so that questions of other calls are other questions


@pytest.mark.parametrize("tools", [[ADD], json.dumps([ADD]), [ADD["function"]], ADD, np.array([ADD], dtype=object)])
def test_tools_belong_to_the_question(tools):
    for question in (question_of({"messages": [USER], "tools": tools}), question_of("1+2=", "", tools)):
        assert question.tools == (ADD,) and question.messages == (USER,) and '"name": "add"' in question
        assert map_question(pickle.loads(pickle.dumps(question)), str).tools == question_of(question).tools == (ADD,)
    assert question_of("1+2=", "Be brief.").messages == (SYSTEM, USER)
    assert question_of([SYSTEM, USER], "Another.").messages == (SYSTEM, USER)
    assert question_of("1+2=", " ", []) == "1+2=" and not isinstance(question_of("1+2=", " ", []), Conversation)
