"""Verifiers by name, for dataset cards and settings."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from fr3e_jax.rewards.exact import exact_match
from fr3e_jax.rewards.math.conventions import (
    AimeVerifier,
    Gsm8kVerifier,
    MathVerifier,
    MinervaVerifier,
    MultipleChoiceVerifier,
    OlympiadVerifier,
    TextbookVerifier,
)
from fr3e_jax.rewards.math.extraction import EXTRACTIONS
from fr3e_jax.rewards.verifier import Verifier


def _code(extraction: str) -> Verifier:
    from fr3e_jax.rewards.code import CodeVerifier  # here, because it needs modules that other verifiers do not

    return CodeVerifier()  # it reads a program from a fenced block, wherever the answer was asked for


VERIFIERS: dict[str, Callable[[str], Verifier]] = {
    "math": MathVerifier,
    "gsm8k": Gsm8kVerifier,
    "aime": AimeVerifier,
    "minerva": MinervaVerifier,
    "olympiad": OlympiadVerifier,
    "gaokao": TextbookVerifier,
    "college_math": TextbookVerifier,
    "multiple_choice": MultipleChoiceVerifier,
    "code": _code,
    "exact": lambda extraction: exact_match,
}


def named_verifier(name: str, extraction: str = "boxed") -> Verifier:
    """The verifier of a benchmark's convention.

    Args:
      name: one of ``VERIFIERS``; docs/users/grading.md describes them.
      extraction: where the prompt asked for the answer: "boxed", "answer_line" or "boxed_or_hashes"; "code" and
        "exact" take the whole response whatever it says.

    Raises:
      ValueError: there is no such verifier or extraction.
    """
    if name not in VERIFIERS:
        close = difflib.get_close_matches(name, VERIFIERS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there is no verifier {name!r}; expected one of {', '.join(sorted(VERIFIERS))}{hint}")
    if extraction not in EXTRACTIONS:
        raise ValueError(f"there is no extraction {extraction!r}; expected one of {', '.join(EXTRACTIONS)}")
    return VERIFIERS[name](extraction)
