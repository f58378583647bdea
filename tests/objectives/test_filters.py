"""Degenerate groups, the hybrid's rule for expansion, and the archive's gate."""

from __future__ import annotations

import numpy as np

from fr3e_jax.objectives.advantages import group_advantages
from fr3e_jax.objectives.filters import archive_open, degenerate_groups, expandable, running_share


def test_groups_without_signal_are_all_right_or_all_wrong():
    rewards = np.array([[1, 1, 1], [0, 0, 0], [1, 0, 1], [-1, -1, -1], [0.5, 0.5, 0.5]])
    all_right, all_wrong = degenerate_groups(rewards)
    np.testing.assert_array_equal(all_right, [True, False, False, False, False])
    np.testing.assert_array_equal(all_wrong, [False, True, False, True, True])


def test_only_present_rollouts_count_and_an_empty_group_is_neither():
    rewards = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [np.nan, 1.0]])
    mask = np.array([[1, 0], [0, 1], [0, 0], [0, 1]])
    all_right, all_wrong = degenerate_groups(rewards, mask)
    np.testing.assert_array_equal(all_right, [True, False, False, True])
    np.testing.assert_array_equal(all_wrong, [False, True, False, False])


def test_threshold_moves_the_border_between_right_and_wrong():
    all_right, all_wrong = degenerate_groups(np.array([[0.5, 0.5]]), success_threshold=0.5)
    assert bool(all_right[0]) and not bool(all_wrong[0])


def test_degenerate_groups_are_those_with_zero_advantage():
    rewards = np.random.default_rng(0).integers(0, 2, size=(64, 4)).astype(np.float32)
    degenerate = np.logical_or(*degenerate_groups(rewards))
    advantages = group_advantages(rewards, np.ones_like(rewards), estimator="mean")
    np.testing.assert_array_equal(degenerate, np.all(np.asarray(advantages) == 0, axis=-1))


def test_expandable_prompts_are_hard_but_solved_at_least_once():
    rates = np.array([0.0, 1 / 16, 4 / 16, 5 / 16, 1.0])
    np.testing.assert_array_equal(expandable(rates, 0.25), [False, True, True, False, False])
    np.testing.assert_array_equal(expandable(rates, 1.0), [False, True, True, True, True])


def test_archive_closes_as_the_running_share_of_all_wrong_falls():
    share, opened = 1.0, []
    for _ in range(3):
        share = running_share(share, 0.5, 0.5)
        opened.append(bool(archive_open(share, 0.65)))
    assert float(share) == 0.5625
    assert opened == [True, False, False]
    assert bool(archive_open(np.float32(0.65), 0.65))
