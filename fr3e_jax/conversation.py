"""Questions that are conversations: lists of messages, each with a role and a text, which a chat template renders.

Roles and keys of ShareGPT's layout (``from``, ``value``; ``human``, ``gpt``) are read as well.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLES_ELSEWHERE = {
    "human": "user",
    **dict.fromkeys(("gpt", "chatgpt", "model", "bot", "ai", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython"), "tool"),
}
_FOR_TEMPLATES = ("name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking")
"""Keys of messages that templates read beside role and content."""
LISTS = ("messages", "conversations", "conversation")
"""Keys, or columns, under which data have a list of messages."""


class Conversation(str):
    """A question of several messages. As a text it is its messages, each after its role; "" if no user says anything.

    So verifiers, rewards and comparisons of questions read it as they read others.

    Attributes:
      messages: dicts with ``role`` and ``content``, both texts; where data have them, with calls of tools and thoughts.
      tools: schemas of functions, which the chat template offers to the policy.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]

    def __new__(cls, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> Conversation:
        asked = any(message["content"].strip() for message in messages if message["role"] == "user")
        texts = list(map(_as_text, messages)) if asked else []
        if tools and asked:
            texts.insert(0, f"tools: {json.dumps(list(tools), ensure_ascii=False)}")
        conversation = super().__new__(cls, "\n\n".join(texts))
        conversation.messages, conversation.tools = tuple(map(dict, messages)), tuple(map(dict, tools))
        return conversation

    def __getnewargs__(self) -> Any:
        return self.messages, self.tools  # for copies and for worker processes

    @property
    def continues_an_answer(self) -> bool:
        """Whether the last message is the beginning of the answer, which the policy continues."""
        return self.messages[-1]["role"] == "assistant"


def question_of(value: Any, system: str = "", tools: Any = None) -> str:
    """The question that a value is: a text, or messages as a `Conversation`, or as a text for one user's message.

    Messages are a list of mappings with ``role`` and ``content`` (a text or a list of text parts, which become lines),
    such a list under a name of `LISTS` (with ``tools`` beside it), or the text of a list, JSON's or pandas's.

    Args:
      value: a text, messages, or an earlier question.
      system: a system message of the row, unless the messages begin with one.
      tools: schemas of functions (a list, or its JSON), unless the value has its own.

    Raises:
      ValueError: it is something else; the message says what and where.
    """
    messages = messages_of(value)
    if messages is None:
        if not isinstance(value, str):
            raise ValueError(f"is {value!r:.80}; expected a text, or a list of messages with role and content")
        messages = [{"role": "user", "content": str(value)}]
    read = [_message(message, index) for index, message in enumerate(messages)]
    roles = [message["role"] for message in read]
    if "user" not in roles:
        said = f"only messages of {', '.join(dict.fromkeys(roles))}" if roles else "no message"
        raise ValueError(f"has {said}; expected at least one of the user")
    if system.strip() and roles[0] not in ("system", "developer"):
        read.insert(0, {"role": "system", "content": system})
    inner = value.get("tools") if isinstance(value, Mapping) else getattr(value, "tools", None)
    schemas = tool_schemas(inner if np.size(inner or ()) else tools)
    return Conversation(read, schemas) if schemas or len(read) > 1 else read[0]["content"]


def tool_schemas(value: Any) -> list[dict[str, Any]]:
    """The schemas of functions that a value is: a list of mappings, its JSON, or nothing.

    Raises:
      ValueError: it is something else.
    """
    schemas = value
    if isinstance(value, str):
        try:
            schemas = json.loads(value or "[]")
        except ValueError:
            schemas = None
    schemas = _plain([] if value is None else schemas)
    schemas = [schemas] if isinstance(schemas, dict) else schemas
    if not isinstance(schemas, list) or not all(isinstance(schema, dict) and schema for schema in schemas):
        raise ValueError(f"has the tools {value!r:.80}; expected a list of schemas, each a mapping with a name")
    return [schema if "function" in schema else {"type": "function", "function": schema} for schema in schemas]


def messages_of(value: Any) -> Sequence[Any] | None:
    """The messages that a value holds, unchecked; None for a text and for what are no messages."""
    if isinstance(value, Conversation):
        return value.messages
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, Mapping):
        lists = [value[name] for name in LISTS if name in value]
        value = lists[0] if lists else [value] if "role" in value else None
    if isinstance(value, np.ndarray):  # of mappings, as pandas reads Parquet
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return None
    mappings = [item for item in value if isinstance(item, Mapping)]
    several = [item for item in mappings if "role" not in item and not item.keys().isdisjoint(LISTS)]
    return value if not value or len(mappings) > len(several) else None


def map_question(question: str, change: Callable[[str], str]) -> str:
    """The question with its text changed; of a conversation, that of the user's last message."""
    if not isinstance(question, Conversation):
        return change(question)
    messages = list(question.messages)
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    messages[last] = {**messages[last], "content": change(messages[last]["content"])}
    return Conversation(messages, question.tools)


def without_answer(question: str, golds: Sequence[str]) -> tuple[str, str | None]:
    """The question, and apart from it a last turn of the assistant that has a gold answer in it, as chat data do.

    The second is None if there is no such turn. Another last turn begins the answer, and stays.
    """
    if not isinstance(question, Conversation) or not question.continues_an_answer:
        return question, None
    *asked, last = question.messages
    said = last["content"]
    if not any(gold and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", said) for gold in golds):
        return question, None
    return question_of(asked, tools=question.tools), said


def _parsed(text: str) -> Any:
    """The list of a text that is messages, else None: a question may be about JSON.

    The text is JSON, or what pandas writes into a cell of CSV: Python's list, or numpy's, which has no commas.
    """
    if not text.lstrip().startswith("[") or not re.search(r"""(["'])(role|from)\1""", text):
        return None
    for read, written in (
        (json.loads, text),
        (ast.literal_eval, text.strip()),
        (ast.literal_eval, re.sub(r"\}\s+\{", "}, {", text.strip())),
    ):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            items = read(written)
            break
    else:
        return None
    keys = {"role", "content"}, {"role", "tool_calls"}, {"from", "value"}
    is_list = all(isinstance(item, Mapping) and any(each <= item.keys() for each in keys) for item in items)
    return items if is_list else None


def _as_text(message: Mapping[str, Any]) -> str:
    more = [f"{key}: {json.dumps(message[key], ensure_ascii=False)}" for key in _FOR_TEMPLATES if key in message]
    return "\n".join([f"{message['role']}: {message['content']}", *more])


def _plain(value: Any) -> Any:
    """JSON content without the nulls with which Parquet fills the keys that other rows have."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _message(message: Any, index: int) -> dict[str, Any]:
    where = f"has in message {index}"
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} {message!r:.80}; expected a mapping with role and content")
    if {"from", "value"} <= message.keys() and "role" not in message:
        message = {**message, "role": message["from"], "content": message["value"]}
    more = {key: value for key in _FOR_TEMPLATES if (value := _plain(message.get(key))) not in (None, "", [])}
    called = message.get("function_call") or (message["content"] if message.get("role") == "function_call" else None)
    if called:
        more["tool_calls"] = [called]
        message = {**message, "content": "" if message["role"] == "function_call" else message.get("content")}
    if more and message.get("content") is None:
        message = {**message, "content": ""}
    if "role" not in message or "content" not in message:
        keys = ", ".join(map(str, message)) or "none"
        raise ValueError(
            f"{where} the keys {keys}; expected role and content, as {{'role': 'user', 'content': '1+2='}}"
        )
    role = str(message["role"]).strip().lower()
    role = _ROLES_ELSEWHERE.get(role, role)
    if role not in ROLES:
        near = difflib.get_close_matches(role, ROLES, n=1)
        advice = f"nearest: {near[0]}" if near else f"expected one of {', '.join(ROLES)}"
        raise ValueError(f"{where} the role {message['role']!r}; {advice}")
    if "tool_calls" in more:
        more["tool_calls"] = [_call(call, where) for call in more["tool_calls"]]
    return {"role": role, "content": _text(message["content"], where), **more}


def _call(call: Any, where: str) -> dict[str, Any]:
    """A call of a tool as templates read it: a function with a name, and its arguments as a mapping."""
    call = _plain(call)
    with contextlib.suppress(ValueError, TypeError):
        call = json.loads(call)
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"{where} the call {call!r:.80}; expected a function with name and arguments")
    arguments = function.get("arguments", {})
    with contextlib.suppress(ValueError, TypeError):  # the OpenAI API writes them as JSON
        arguments = json.loads(arguments)
    call = call if "function" in call else {"type": "function"}
    return {**call, "function": {**function, "arguments": arguments}}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return str(content)
    parts = content.tolist() if isinstance(content, np.ndarray) else content
    if not isinstance(parts, list | tuple):
        raise ValueError(f"{where} the content {content!r:.80}; expected a text or a list of text parts")
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind not in ("text", "input_text"):
            raise ValueError(
                f"{where} a part of type {kind!r}; expected text alone: the networks read no images or sounds"
            )
        if not isinstance(text, str):
            raise ValueError(f"{where} the part {part!r:.80}; expected {{'type': 'text', 'text': ...}}")
        texts.append(text)
    return "\n".join(texts)
