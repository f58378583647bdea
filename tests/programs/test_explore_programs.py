"""Batched anchors and advantages against the objectives called on one unpadded row, and two trajectories by hand."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

from fr3e_jax.objectives.advantages import block_credit, fr3e_advantages
from fr3e_jax.objectives.advantages import group_advantages as estimated_advantages
from fr3e_jax.objectives.anchors import AnchorRules, select_anchors, uniform_anchors
from fr3e_jax.objectives.values import trajectory_modulation
from fr3e_jax.programs.explore_programs import block_numbers, find_anchors, group_advantages, trajectory_advantages

LENGTHS = (7, 1, 19, 2, 12)
RNG = np.random.default_rng(0)
SOURCES = [RNG.standard_normal(n).astype(np.float32) for n in LENGTHS]


@partial(jax.jit, static_argnames="rules")
def unpadded_anchors(source, rules):
    """The objectives' anchors at even distances, at peaks of the source, and at its valleys."""
    length = len(source)
    return uniform_anchors(length, rules, T=length), *(select_anchors(x, length, rules) for x in (source, -source))


class TestAnchors:
    @pytest.mark.parametrize(
        "rules",
        [AnchorRules(4, include_anchor_token=True), AnchorRules(3, min_spacing=3, exclude_first=2, exclude_last=1)],
    )
    def test_anchors_equal_the_objective_on_the_unpadded_response(self, rules):
        selections = ("uniform", "entropy", "logprob", "gradient", "random")
        placed = [find_anchors(SOURCES, rules, selection=selection) for selection in selections]
        for source, found in zip(SOURCES, zip(*placed, strict=True), strict=True):
            even, peaks, valleys = (x[np.asarray(valid)].tolist() for x, valid in unpadded_anchors(source, rules))
            assert [anchors.tolist() for anchors in found] == [even, peaks, valleys, peaks, peaks]

    @pytest.mark.parametrize("length", [1, 16, 21])
    def test_cuts_number_the_blocks_of_a_response(self, length):
        cuts = [cut for cut in (2, 5, 20) if cut < length]
        expected = [sum(cut <= t for cut in cuts) for t in range(length)]
        assert block_numbers(cuts, length, 5).tolist() == expected

    def test_of_nothing_are_nothing(self):
        assert find_anchors([], AnchorRules(3), selection="entropy") == []


@pytest.mark.parametrize("estimator", ["mean", "grpo", "rloo"])
def test_group_advantages_equal_the_objective_of_each_group(estimator):
    rewards = np.random.default_rng(1).integers(0, 2, (5, 6)).astype(np.float64)
    ours = group_advantages(rewards, estimator=estimator, unbiased_std=True)
    for row, advantages in zip(rewards, ours, strict=True):
        expected = estimated_advantages(row, np.ones(6, bool), estimator=estimator, unbiased_std=True)
        np.testing.assert_allclose(advantages, expected, rtol=1e-6, atol=1e-6)


def trajectories(fresh):
    """Five expanded bases with K = 3: missing states and missing branches among them."""
    rng = np.random.default_rng(2)
    mask = rng.random((5, 4, 6)) < 0.8
    mask[1, 2], mask[3, 1:3], mask[4, 1:] = False, False, False
    mask[:, 0] = fresh
    return (rng.random((5, 4, 6)) < 0.5) * mask * 1.0, mask, rng.random(5), rng.integers(0, 2, 5).astype(np.float64)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("modulation", ["none", "exp", "sharpen"])
def test_trajectories_equal_the_objectives_of_each_base(modulation, fresh):
    rewards, mask, base_value, final = trajectories(fresh)
    options = dict(estimator="mean", unbiased_std=False, modulation=modulation, fresh=fresh)
    advantages, values, alphas, credit = trajectory_advantages(rewards, mask, base_value, final, **options)
    for r in range(5):
        start = rewards[r, 0].mean() if fresh else base_value[r]
        names = dict(modulation=modulation, fresh=fresh)
        valid = mask[r, 1:].any(axis=-1)
        expected, states, factors = fr3e_advantages(rewards[r, 1:], mask[r, 1:], start, valid, **names)
        close = lambda ours, other: np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-6)
        close(advantages[r, 1:], expected)
        close(values[r], [start, *states])
        close(alphas[r, 1:], factors)
        close(credit[r], block_credit(states, start, final[r], valid))
        if fresh:
            whole = trajectory_modulation(states, start, valid, variant=modulation, fresh=fresh)
            close(alphas[r, 0], whole[0])
            close(advantages[r, 0], whole[0] * (rewards[r, 0] - start))
        else:
            assert not advantages[r, 0].any()
