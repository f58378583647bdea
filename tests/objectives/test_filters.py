"""Degenerate groups."""

from __future__ import annotations

import numpy as np

from fr3e_jax.objectives.advantages import group_advantages
from fr3e_jax.objectives.filters import is_degenerate


def test_degenerate_groups_are_those_with_zero_advantage():
    rewards = np.random.default_rng(0).integers(0, 2, size=(64, 4)).astype(np.float32)
    advantages = group_advantages(rewards, np.ones_like(rewards), estimator="mean")
    found = [is_degenerate(row) for row in rewards]
    assert True in found and False in found
    np.testing.assert_array_equal(found, np.all(np.asarray(advantages) == 0, axis=-1))


def test_a_group_of_one_is_degenerate():
    assert is_degenerate(np.array([0.5]))
