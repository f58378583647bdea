"""The text of a prompt as turns of a conversation, and the question in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.conversation import ROLES
from fr3e_jax.data.templates import MARK, QUESTION, load_template
from fr3e_jax.data.tokenizer import TextCodec

QUESTION_CHARACTERS = 160
Turns = list[tuple[str, str]]
"""Role ("" without one) and text of each turn."""
_BEGINS_TURN = ("im_start", "start_header_id", "start_of_turn", "start_of_role", "start")
_ENDS_HEADER = ("end_header_id", "end_of_role", "im_sep", "message")
_ROLE_OF_MARK = {"inst": "user", "/inst": "assistant", "sys": "system", "/sys": "user", "model": "assistant"}
_ROLE = re.compile(r"\s*([A-Za-z_]+)[ \t]*\n?")


def turns_of(text: str) -> Turns:
    """The turns of a text that a chat template wrote; the whole text as one turn if it has no mark of a role."""
    turns: Turns = []
    role, start, names_role = "", 0, False
    for mark in [*MARK.finditer(text), None]:
        part = text[start : mark.start() if mark else len(text)]
        if names_role and (word := _ROLE.match(part)):
            role, part = word[1], part[word.end() :]
        names_role = False
        if part.strip() not in ("", "<bos>"):
            turns.append((_ROLE_OF_MARK.get(role, role), part.strip()))
        if mark is None:
            break
        start, name = mark.end(), mark[0].strip("<>|｜[]").lower()
        if name in _BEGINS_TURN:
            role, names_role = "", True
        elif name in ROLES or name in _ROLE_OF_MARK:
            role = name
        elif name not in _ENDS_HEADER:
            role = ""
    return turns if any(role for role, _ in turns) else [("", text)]


def question_finder(settings: Mapping[str, Any], codec: TextCodec | None) -> Callable[[str], str]:
    """The function that finds the question in a prompt of a run with these settings, by their dotted names.

    Without the run's template, it is the last turn of a user, or the whole text.
    """
    before = after = "\0"  # in no prompt
    try:
        template = load_template(str(settings.get("data.template", "plain")))
        before, _, after = template.render(QUESTION, codec.render_chat if codec else None).partition(QUESTION)
    except (ConfigError, ValueError, OSError):
        pass  # the template or the tokenizer is no longer there

    def question(prompt: str) -> str:
        if prompt.startswith(before) and prompt.endswith(after) and len(prompt) >= len(before) + len(after):
            prompt = prompt[len(before) : len(prompt) - len(after)]
        turns = turns_of(prompt)
        return next((text for role, text in reversed(turns) if role == "user"), turns[-1][1])

    return question


def shortened(text: str) -> str:
    """The beginning of a text, for a list."""
    return text[:QUESTION_CHARACTERS] + "…" * (len(text) > QUESTION_CHARACTERS)
