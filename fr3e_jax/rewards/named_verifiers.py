"""Verifiers by name, for dataset cards and settings."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from fr3e_jax.rewards.extraction import EXTRACTIONS
from fr3e_jax.rewards.math_verifiers import CONVENTIONS
from fr3e_jax.rewards.verifier import Verifier, exact_match, unjudged


def _code(extraction: str) -> Verifier:
    from fr3e_jax.rewards.code import CodeVerifier  # here, as only this verifier needs its modules

    return CodeVerifier()  # it reads a program from a fenced block, whatever the extraction


VERIFIERS: dict[str, Callable[[str], Verifier]] = {
    **CONVENTIONS,
    "code": _code,
    "exact": lambda extraction: exact_match,
    "judge": lambda extraction: unjudged,
    "none": lambda extraction: exact_match,  # of problems without a gold answer, to which no response is right
}


def named_verifier(name: str, extraction: str = "boxed") -> Verifier:
    """The verifier of a benchmark's convention.

    Args:
      name: one of ``VERIFIERS``; docs/users/grading.md describes them.
      extraction: where the prompt asked for the answer: "boxed", "answer_line" or "boxed_or_hashes"; "code",
        "exact" and "none" ignore it.

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
