"""What a tool gives back."""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["answered", "error", "timeout"]


class Answer(NamedTuple):
    """The text that the policy gets to read, errors included, and how it came about (a metric each)."""

    text: str
    outcome: Outcome
