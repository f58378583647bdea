"""ARPO's rule of branching against a loop, numbers by hand, and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fr3e_jax.objectives.tool_branching import branches_after_answer, entropy_from


def by_loop(entropies, drawn, start, tokens, vocabulary) -> float:
    total, taken = 0.0, 0
    for position in range(start, len(entropies)):
        if drawn[position] and taken < tokens:
            total, taken = total + entropies[position], taken + 1
    return total / math.log(vocabulary)


@pytest.mark.parametrize("start", [0, 3, 11, 12])
@pytest.mark.parametrize("tokens", [1, 4, 20])
def test_entropy_is_that_of_the_first_tokens_drawn(start, tokens):
    rng = np.random.default_rng(start)
    for _ in range(5):
        entropies, drawn = rng.exponential(size=12).astype(np.float32), rng.random(12) < 0.6
        found = entropy_from(entropies, drawn, start, tokens=tokens, vocabulary=50)
        np.testing.assert_allclose(found, by_loop(entropies, drawn, start, tokens, 50), rtol=1e-6)


def test_what_a_tool_wrote_reaches_nothing():
    entropies = np.array([1.0, np.nan, np.inf, 2.0], np.float32)
    found = entropy_from(entropies, np.array([True, False, False, True]), 0, tokens=2, vocabulary=2)
    np.testing.assert_allclose(found, 3 / math.log(2), rtol=1e-6)


def test_a_response_of_the_largest_entropy_has_one_for_each_token():
    entropies = np.full(30, math.log(1000), np.float32)
    np.testing.assert_allclose(entropy_from(entropies, np.ones(30), 0, tokens=20, vocabulary=1000), 20, rtol=1e-5)


def test_the_rule_against_a_loop():
    rng = np.random.default_rng(0)
    uniforms, changes = rng.random(200).astype(np.float32), rng.normal(scale=3, size=200).astype(np.float32)
    found = branches_after_answer(uniforms, changes, weight=0.2, probability=0.5)
    wanted = [min(max(float(u) - 0.2 * float(h), 0.0), 1.0) <= 0.5 for u, h in zip(uniforms, changes, strict=True)]
    assert found.tolist() == wanted and 60 < sum(wanted) < 140


def test_a_share_p_branches_without_a_change_and_more_where_entropy_rises():
    uniforms = np.linspace(0, 1, 1000, endpoint=False, dtype=np.float32)
    share = lambda change: float(
        np.mean(branches_after_answer(uniforms, np.full(1000, change, np.float32), weight=0.2, probability=0.5))
    )
    np.testing.assert_allclose([share(-5), share(-1), share(0), share(1), share(5)], [0, 0.3, 0.5, 0.7, 1], atol=2e-3)


@pytest.mark.parametrize(("tokens", "vocabulary"), [(0, 10), (5, 1)])
def test_sizes_without_a_meaning_are_refused(tokens, vocabulary):
    with pytest.raises(ValueError, match="expected at least 1 and 2"):
        entropy_from(np.zeros(3, np.float32), np.ones(3, bool), 0, tokens=tokens, vocabulary=vocabulary)
