"""Degenerate groups, and the archive's gate."""

from __future__ import annotations

import numpy as np

from fr3e_jax.objectives.advantages import group_advantages
from fr3e_jax.objectives.filters import archive_open, is_degenerate, running_share


def test_degenerate_groups_are_those_with_zero_advantage():
    rewards = np.random.default_rng(0).integers(0, 2, size=(64, 4)).astype(np.float32)
    advantages = group_advantages(rewards, np.ones_like(rewards), estimator="mean")
    found = [is_degenerate(row) for row in rewards]
    assert True in found and False in found
    np.testing.assert_array_equal(found, np.all(np.asarray(advantages) == 0, axis=-1))


def test_a_group_of_one_is_degenerate():
    assert is_degenerate(np.array([0.5]))


def test_the_archive_closes_as_the_running_share_of_all_wrong_falls():
    share, opened = 1.0, []
    for _ in range(3):
        share = running_share(share, 0.5, 0.5)
        opened.append(bool(archive_open(share, 0.65)))
    assert float(share) == 0.5625
    assert opened == [True, False, False]
    assert bool(archive_open(np.float32(0.65), 0.65))
