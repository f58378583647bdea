"""Degenerate groups, and balanced ones."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.objectives.advantages import group_advantages
from fr3e_jax.objectives.filters import balanced_group, has_both_kinds, is_degenerate


def test_degenerate_groups_are_those_with_zero_advantage():
    rewards = np.random.default_rng(0).integers(0, 2, size=(64, 4)).astype(np.float32)
    advantages = group_advantages(rewards, np.ones_like(rewards), estimator="mean")
    found = [is_degenerate(row) for row in rewards]
    assert True in found and False in found
    np.testing.assert_array_equal(found, np.all(np.asarray(advantages) == 0, axis=-1))


def test_a_group_of_one_is_degenerate():
    assert is_degenerate(np.array([0.5]))


@pytest.mark.parametrize(
    ("right", "count", "enough", "chosen"),
    [
        ("", 4, False, []),
        ("1", 4, False, [0]),
        ("0000 0", 4, False, [0, 1, 2, 3]),  # all equal: as many as there are places
        ("1111 1", 4, False, [0, 1, 2, 3]),
        ("0000 0100", 4, False, [0, 1, 2, 5]),  # the one right response, and wrong ones in its fellow's place
        ("0101 1100", 4, True, [0, 1, 2, 3]),
        ("1111 0100", 4, True, [0, 1, 4, 6]),
        ("1101 1", 5, False, [0, 1, 2, 3, 4]),
        ("1100 0", 5, True, [0, 1, 2, 3, 4]),  # the odd place is for a wrong one
        ("10", 1, True, [1]),
        ("11", 1, False, [0]),
    ],
)
def test_a_balanced_group_has_the_first_of_both_kinds(right, count, enough, chosen):
    right = np.array([digit == "1" for digit in right.replace(" ", "")], bool)
    assert has_both_kinds(right, count) is enough
    assert balanced_group(right, count).tolist() == chosen
