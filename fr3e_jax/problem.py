"""One prompt with its gold answer: tasks provide it, the policy answers it, and verifiers grade the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fr3e_jax.conversation import question_of


@dataclass(frozen=True)
class Problem:
    """One prompt to answer. ``id`` is unique within its task; ``extra`` holds whatever else the verifier needs.

    ``prompt`` is a text. Messages given in its place become one (`fr3e_jax.conversation.question_of`).

    Raises:
      ValueError: the prompt is neither a text nor messages.
    """

    id: str
    prompt: str
    gold: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            object.__setattr__(self, "prompt", question_of(self.prompt))
