"""Marks of outcomes in a page: a word, a tone (colour and shape) and the path of an icon in a square of 16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class Mark(TypedDict):
    """An outcome in a page."""

    word: str
    tone: str
    """``right``, ``wrong``, ``none`` or ``trouble``, a class of the style sheet."""
    path: str


def _mark(word: str, tone: str, path: str) -> Mark:
    return {"word": word, "tone": tone, "path": path}


MARKS: Mapping[str, Mark] = {
    "right": _mark("right", "right", "M-4 0.5 L-1.2 3.2 L4 -3"),
    "wrong": _mark("wrong", "wrong", "M-3 -3 L3 3 M3 -3 L-3 3"),
    "restated": _mark("restated the question", "wrong", "M-3.5 -1.5 H3.5 M-3.5 1.5 H3.5"),
    "other_form": _mark("another form than asked", "wrong", "M-3.5 1 Q-1.7 -3 0 0 T3.5 -1"),
    "string_only": _mark("unreadable answer", "wrong", "M-3 -2 H3 M0 -2 V3"),
    "refused": _mark("beyond a limit", "wrong", "M-3.2 0 H3.2"),
    "no_answer": _mark("no answer", "none", "M-3.2 3.2 L3.2 -3.2"),
    "cut": _mark("cut at the length cap", "none", "M-3.5 0 H2 M2.6 -3.5 V3.5"),
    "timeout": _mark("verifier timed out", "trouble", "M0 -3.4 V0 L2.6 1.6"),
    "worker_died": _mark("verifier died", "trouble", "M0 -3.5 V1 M0 2.8 V3.6"),
    "error": _mark("verifier raised", "trouble", "M0 -3.5 V1 M0 2.8 V3.6"),
    "judge_timeout": _mark("judge timed out", "trouble", "M0 -3.4 V0 L2.6 1.6"),
    "judge_unreachable": _mark("judge unreachable", "trouble", "M-3.5 0 H-1 M1 0 H3.5"),
    "judge_unparseable": _mark("judge unreadable", "trouble", "M-3 -2 H3 M0 -2 V3"),
    "none": _mark("not graded", "trouble", "M-1.6 0 H1.6"),
}
"""By the outcome; "cut": the length cap ended it without an answer; "none": it was not graded."""
