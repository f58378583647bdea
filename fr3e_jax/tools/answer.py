"""The answer of a tool."""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["answered", "error", "timeout"]


class Answer(NamedTuple):
    """The text that the policy reads, errors included, and its outcome. Each outcome is counted as a metric.

    A tool with state also gives a reward, ends the response with ``done``, and may say whether it has succeeded.
    """

    text: str
    outcome: Outcome
    reward: float = 0.0
    done: bool = False
    right: bool | None = None
