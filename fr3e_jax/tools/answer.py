"""The answer of a tool."""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["answered", "error", "timeout"]


class Answer(NamedTuple):
    """The text that the policy reads, errors included, and its outcome. Each outcome is counted as a metric."""

    text: str
    outcome: Outcome
