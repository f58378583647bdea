"""The strictest reward: the response is the gold answer, character by character."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fr3e_jax.data.problem import Problem


def exact_match(problem: Problem, response: str, finished: bool) -> float:
    """1 if the response was finished and equals ``problem.gold`` exactly (nothing is stripped), else 0."""
    return float(finished and response == problem.gold)
