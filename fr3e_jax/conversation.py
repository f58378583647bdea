"""Questions that are conversations: lists of messages, each with a role and a text, which a chat template renders."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLES_ELSEWHERE = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "ai": "assistant"}


class Conversation(str):
    """A question of several messages. As a text it is its messages, each after its role; "" if no user says anything.

    So verifiers, rewards and comparisons of questions read it as they read others.

    Attributes:
      messages: dicts with ``role`` and ``content``, both texts.
    """

    messages: tuple[dict[str, str], ...]

    def __new__(cls, messages: Sequence[Mapping[str, str]]) -> Conversation:
        asked = any(message["content"].strip() for message in messages if message["role"] == "user")
        texts = [f"{message['role']}: {message['content']}" for message in messages] if asked else []
        conversation = super().__new__(cls, "\n\n".join(texts))
        conversation.messages = tuple(map(dict, messages))
        return conversation

    def __getnewargs__(self) -> Any:
        return (self.messages,)  # for copies and for worker processes

    @property
    def continues_an_answer(self) -> bool:
        """Whether the last message is the beginning of the answer, which the policy continues."""
        return self.messages[-1]["role"] == "assistant"


def question_of(value: Any) -> str:
    """The question that a value is: a text, or messages as a `Conversation`, or as a text for one user's message.

    Messages are a list of mappings with ``role`` and ``content`` (a text or a list of text parts, which become lines),
    such a list under ``messages``, or the JSON of a list.

    Raises:
      ValueError: it is something else; the message says what and where.
    """
    messages = messages_of(value)
    if messages is None:
        if isinstance(value, str):
            return str(value)
        raise ValueError(f"is {value!r:.80}; expected a text, or a list of messages with role and content")
    read = [_message(message, index) for index, message in enumerate(messages)]
    roles = [message["role"] for message in read]
    if "user" not in roles:
        said = f"only messages of {', '.join(dict.fromkeys(roles))}" if roles else "no message"
        raise ValueError(f"has {said}; expected at least one of the user")
    return read[0]["content"] if roles == ["user"] else Conversation(read)


def messages_of(value: Any) -> Sequence[Any] | None:
    """The messages that a value holds, unchecked; None for a text and for what are no messages."""
    if isinstance(value, Conversation):
        return value.messages
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, Mapping):
        value = value.get("messages", [value] if "role" in value else None)
    if isinstance(value, np.ndarray):  # of mappings, as pandas reads Parquet
        value = value.tolist()
    if isinstance(value, list | tuple) and (not value or any(isinstance(message, Mapping) for message in value)):
        return value
    return None


def map_question(question: str, change: Callable[[str], str]) -> str:
    """The question with its text changed; of a conversation, that of the user's last message."""
    if not isinstance(question, Conversation):
        return change(question)
    messages = list(question.messages)
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    messages[last] = {**messages[last], "content": change(messages[last]["content"])}
    return Conversation(messages)


def gives_away(question: str, answers: Sequence[str]) -> bool:
    """Whether a conversation ends in a turn of the assistant that has one of the answers in it, as chat data do."""
    if not isinstance(question, Conversation) or not question.continues_an_answer:
        return False
    said = question.messages[-1]["content"]
    return any(answer and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", said) for answer in answers)


def _parsed(text: str) -> Any:
    """The list of a JSON text that is messages, else None: a question may be about JSON."""
    if not text.lstrip().startswith("[") or '"role"' not in text:
        return None
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return items if all(isinstance(item, Mapping) and {"role", "content"} <= item.keys() for item in items) else None


def _message(message: Any, index: int) -> dict[str, str]:
    where = f"has in message {index}"
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} {message!r:.80}; expected a mapping with role and content")
    if "role" not in message or "content" not in message:
        keys = ", ".join(map(str, message)) or "none"
        raise ValueError(
            f"{where} the keys {keys}; expected role and content, as {{'role': 'user', 'content': '1+2='}}"
        )
    role = message["role"]
    if role not in ROLES:
        near = difflib.get_close_matches(str(role).lower(), ROLES, n=1)
        nearest = _ROLES_ELSEWHERE.get(str(role).lower()) or (near[0] if near else None)
        advice = f"nearest: {nearest}" if nearest else f"expected one of {', '.join(ROLES)}"
        raise ValueError(f"{where} the role {role!r}; {advice}")
    if call := next((key for key in ("tool_calls", "function_call") if np.size(message.get(key) or ())), None):
        raise ValueError(f"{where} {call}, which are not rendered; expected texts alone")
    return {"role": str(role), "content": _text(message["content"], where)}


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
