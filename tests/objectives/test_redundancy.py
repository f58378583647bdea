"""3-gram redundancy, as Deng et al. 2025 filters by it."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.objectives.redundancy import n_gram_redundancy


@pytest.mark.parametrize(
    ("token_ids", "redundancy"),
    [
        ([], 0.0),
        ([1, 1], 0.0),
        ([1, 2, 3, 4, 5], 0.0),
        ([1, 1, 1, 1, 1, 1], 3 / 4),
        ([1, 2, 3, 1, 2, 3, 1, 2], 3 / 6),  # 123 231 312 123 231 312
    ],
)
def test_by_hand(token_ids, redundancy):
    assert n_gram_redundancy(np.array(token_ids, int)) == pytest.approx(redundancy)


def test_equals_a_set_of_tuples():
    ids = np.random.default_rng(0).integers(0, 4, 60)
    for n in (1, 2, 5):
        grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
        assert n_gram_redundancy(ids, n) == pytest.approx(1 - len(set(grams)) / len(grams))


def test_grams_of_nothing_are_refused():
    with pytest.raises(ValueError, match="expected at least 1"):
        n_gram_redundancy(np.arange(3), 0)
