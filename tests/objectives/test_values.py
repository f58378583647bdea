"""State values and their modulation factors: the authors' numbers, missing states, and filtered neighbours."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.values import (
    sharpened,
    state_values,
    trajectory_modulation,
    value_differences,
)

VALUES = np.array([0.5, 0.75, 0.25])
VALID = np.ones(3, bool)


def state_factors(*arguments, variant):
    return trajectory_modulation(*arguments, variant=variant)[1:]


def test_value_is_the_mean_reward_of_the_rollouts_that_exist():
    rewards = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(state_values(rewards, mask), [0.25, 1.0, 0.0])


class TestModulation:
    def test_hand_computed_factors(self):
        alphas = state_factors(VALUES, 0.25, VALID, variant="exp")
        np.testing.assert_allclose(alphas, np.exp([-0.25, -0.25, 0.5]), rtol=1e-6)

    def test_none_is_one(self):
        np.testing.assert_array_equal(trajectory_modulation(VALUES, 0.25, VALID, variant="none"), np.ones(4))

    def test_sharpened_differences_by_hand(self):
        np.testing.assert_allclose(sharpened(np.array([0.25, -1.0, 0.0])), [1 / 9, -8 / 9, 0.0], rtol=1e-6)
        alphas = state_factors(VALUES, 0.5, VALID, variant="sharpen")
        differences = np.array([0.0, 0.25, -0.5])
        powers = np.sign(differences) * np.abs(differences) ** 1.5
        np.testing.assert_allclose(alphas, np.exp(-powers / np.abs(powers).sum()), rtol=1e-6)

    def test_product_of_factors_telescopes_to_the_total_gain(self):
        """Π_j α_j = exp(V(S_0) − V(S_J))."""
        alphas = state_factors(VALUES, 0.125, VALID, variant="exp")
        np.testing.assert_allclose(np.prod(alphas), np.exp(0.125 - VALUES[-1]), rtol=1e-6)

    @pytest.mark.parametrize("variant", ["none", "exp", "sharpen"])
    def test_flat_values_leave_advantages_alone_with_finite_gradient(self, variant):
        def total(values):
            return state_factors(values, 0.5, VALID, variant=variant).sum()

        value, gradient = jax.value_and_grad(total)(jnp.full(3, 0.5))
        assert value == 3.0
        assert np.isfinite(gradient).all()

    def test_an_unknown_variant_is_named(self):
        with pytest.raises(ValueError, match="modulation 'squared'; expected none, exp, sharpen"):
            state_factors(VALUES, 0.5, VALID, variant="squared")


class TestMissingStates:
    @pytest.mark.parametrize("variant", ["exp", "sharpen"])
    def test_predecessor_is_the_previous_valid_state(self, variant):
        gapped = state_factors(np.array([0.5, np.nan, 0.25, 9.0]), 0.25, np.array([1, 0, 1, 0]), variant=variant)
        dense = state_factors(np.array([0.5, 0.25]), 0.25, np.array([1, 1]), variant=variant)
        np.testing.assert_array_equal(gapped, [dense[0], 1.0, dense[1], 1.0])

    def test_first_valid_state_follows_the_prompt(self):
        differences = value_differences(np.array([0.9, 0.5]), 0.25, np.array([False, True]))
        np.testing.assert_allclose(differences, [0.0, 0.25])

    def test_trajectory_without_states(self):
        np.testing.assert_array_equal(state_factors(VALUES, 0.5, np.zeros(3), variant="sharpen"), np.ones(3))


class TestInitialState:
    @pytest.mark.parametrize("fresh", [False, True])
    def test_has_factor_one_unless_sharpened(self, fresh):
        alphas = trajectory_modulation(VALUES, 0.25, VALID, variant="exp", fresh=fresh)
        assert alphas[0] == 1
        np.testing.assert_array_equal(alphas[1:], state_factors(VALUES, 0.25, VALID, variant="exp"))

    def test_matches_the_authors_with_and_without_sharpening(self):
        """Their advantages of S_0, S_1, S_2, four rollouts each; their δ_0 is 1 − V(S_0), ours without sharpening 0."""
        rewards = np.array([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
        values = state_values(rewards, np.ones_like(rewards))
        centred = rewards - np.asarray(values)[:, None]
        expected = {
            "exp": [[0.75, -0.25], [0.38940039, -0.38940039], [0.19470019, -0.58410058]],
            "sharpen": [[0.36430794, -0.12143598], [0.43513007, -0.43513007], [0.21756503, -0.65269510]],
        }
        for variant, numbers in expected.items():
            alphas = trajectory_modulation(values[1:], values[0], np.ones(2), variant=variant, fresh=True)
            modulated = centred * np.asarray(alphas)[:, None]
            np.testing.assert_allclose(modulated[:, [0, -1]], numbers, rtol=1e-6)
