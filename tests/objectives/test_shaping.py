"""Shaped advantages: the study's released code, hand-made cases, the properties that the papers state."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives import shaping
from fr3e_jax.objectives.shaping import pass_at_k_advantages

entropy_based_advantages = partial(shaping.entropy_based_advantages, alpha=0.4, kappa=2.0)
perplexity_weights = partial(shaping.perplexity_weights, variant="paper")
perplexity_shaped_advantages = partial(shaping.perplexity_shaped_advantages, alpha=0.01, variant="paper")
position_shaped_advantages = partial(
    shaping.position_shaped_advantages, gamma=0.1, direction=1.0, steepness=15.0, centre=0.5, variant="paper"
)
sample_reinforcement = partial(shaping.sample_reinforcement, positive=0.1, negative=1.0)

ADVANTAGES = np.array([[1.5] * 4, [-1.5] * 4], np.float32)
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


class TestEntropyBasedAdvantages:
    def test_hand_computed(self):
        shaped, ratio = entropy_based_advantages(
            np.array([1.0, -1.0, 1.0, 0.0]), np.array([0.5, 0.5, 9.0, 1.0]), np.ones(4)
        )
        np.testing.assert_allclose(shaped, [1.2, -0.8, 1.5, 0.0], rtol=1e-6)
        np.testing.assert_allclose(ratio, [0.2, 0.2, 0.5, 0.0], rtol=1e-6)

    def test_entropies_get_no_gradient_and_padding_reaches_nothing(self):
        slope = jax.grad(lambda h: entropy_based_advantages(ADVANTAGES, h, MASK)[0].sum())(jnp.ones((2, 4)))
        assert not slope.any()
        shaped, _ = entropy_based_advantages(np.where(MASK, 1.0, np.nan), np.where(MASK, 1.0, np.nan), MASK)
        assert np.isfinite(shaped).all() and shaped[1, 3] == 0

    def test_refuses_a_kappa_that_turns_signs(self):
        with pytest.raises(ValueError, match="kappa=1.0"):
            entropy_based_advantages(ADVANTAGES, ADVANTAGES, MASK, kappa=1.0)


class TestPerplexity:
    LOG = np.array([3.5 / 3, 0.2, 0.4, 5.0, 0.7 / 3], np.float32)

    def test_released_weights(self):
        """The released code's numbers: statistics without the one response far outside."""
        weights = perplexity_weights(self.LOG, np.ones(5), variant="released")
        expected = [
            1.6994371546483495,
            -0.7647467195917571,
            -0.2549155731972525,
            11.471200793876358,
            -0.6797748618593397,
        ]
        np.testing.assert_allclose(weights, expected, rtol=1e-4)

    @pytest.mark.parametrize("variant", ["paper", "released"])
    def test_equal_perplexities_weigh_nothing(self, variant):
        assert not np.asarray(perplexity_weights(np.full(4, 0.3, np.float32), np.ones(4), variant=variant)).any()

    def test_shaped_by_hand_and_as_released(self):
        weights = np.array([1.0, -1.0])
        low = perplexity_shaped_advantages(ADVANTAGES, weights)
        np.testing.assert_allclose(low[:, 0], [1.5 * 0.99, -1.5 * 1.01], rtol=1e-6)
        high = perplexity_shaped_advantages(ADVANTAGES, weights, alpha=-0.01, variant="released")
        np.testing.assert_allclose(high[:, 0], [1.515, -1.485], rtol=1e-6)
        never = perplexity_shaped_advantages(ADVANTAGES, weights, variant="released")
        np.testing.assert_array_equal(never, ADVANTAGES)
        clamped = perplexity_shaped_advantages(ADVANTAGES, 90 * weights, alpha=-0.01, variant="released")
        np.testing.assert_allclose(clamped[:, 0], [1.8, -1.2], rtol=1e-6)


class TestPosition:
    def test_released(self):
        shaped = position_shaped_advantages(ADVANTAGES, MASK, variant="released")
        expected = [
            [1.5000552778636924, 1.5022977369910027, 1.55, 1.5977022630089972],
            [-1.5000552778636924, -1.5075858180021242, -1.5924141819978757, 0],
        ]
        np.testing.assert_allclose(shaped, expected, rtol=1e-6)

    def test_released_bonus_is_at_most_half_of_the_advantage(self):
        shaped = position_shaped_advantages(np.full((1, 4), 0.1, np.float32), np.ones((1, 4)), variant="released")
        assert np.isclose(shaped[0, 3], 0.15)

    def test_the_printed_centre_saturates(self):
        shaped = position_shaped_advantages(ADVANTAGES, MASK, centre=-0.5)
        np.testing.assert_allclose(shaped[0], 1.6, atol=1e-4)


def test_sample_reinforcement():
    """The verdict decides: a penalty leaves the second right response a negative advantage."""
    advantages = np.array([[1.0] * 3, [-1.0, -1.0, -0.0], [-0.5] * 3, [0.25] * 3], np.float32)
    right = np.array([[True] * 3, [False] * 3, [True] * 3, [False] * 3])
    wanted = [[0.1] * 3, [-1, -1, 0], [-0.05] * 3, [0.25] * 3]
    np.testing.assert_allclose(sample_reinforcement(advantages, right), wanted, rtol=1e-6)
    alone = np.asarray(sample_reinforcement(advantages, right, positive=0.0))
    np.testing.assert_array_equal(alone[[0, 2]], np.zeros((2, 3)))
    alone = np.asarray(sample_reinforcement(advantages, right, positive=1.0, negative=0.0))
    np.testing.assert_array_equal(alone[[1, 3]], np.zeros((2, 3)))


class TestPassAtK:
    @pytest.mark.parametrize(
        ("correct", "k", "right", "wrong"),
        [(1, 1, 2.6457433110887805, -0.37796333015554007), (3, 2, 0.7453544369476209, -0.44721266216857225)],
    )
    def test_published_numbers(self, correct, k, right, wrong):
        found = pass_at_k_advantages(np.arange(8) < correct, np.ones(8), k=k)
        np.testing.assert_allclose(found, [right] * correct + [wrong] * (8 - correct), rtol=1e-5)

    def test_a_group_smaller_than_k_has_no_advantage(self):
        assert not np.asarray(pass_at_k_advantages(np.array([True, False, False]), np.ones(3), k=4)).any()
