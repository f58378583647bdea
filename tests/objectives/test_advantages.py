"""Group advantages, FR3E's modulated ones, and the credit of base blocks."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.advantages import (
    block_credit,
    fr3e_advantages,
    graded_values,
    group_advantages,
    grpo_advantages,
    maxrl_advantages,
    mean_advantages,
    ranged_rewards,
    rloo_advantages,
    whitening,
)
from fr3e_jax.objectives.anchors import block_index
from fr3e_jax.objectives.shaping import pass_at_k_advantages

ESTIMATORS = ["grpo", "rloo", "mean"]
# The six rewards of the reference vectors: one group of four, one of two.
REWARDS = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, np.nan, np.nan]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])


@partial(jax.jit, static_argnums=(2, 3))
@jax.value_and_grad
def weighted_sum(rewards, mask, estimator, unbiased):
    advantages = group_advantages(rewards, mask, estimator=estimator, unbiased_std=unbiased)
    return (jnp.array([1.0, 2.0, 4.0]) * advantages).sum()


class TestMaxRL:
    @pytest.mark.parametrize("n", [2, 3, 8])
    @pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
    def test_its_expected_gradient_is_that_of_the_log_likelihood_to_its_order(self, n, p):
        """All outcomes of n rollouts that succeed with probability p, each with its probability; ∇ is d/dp."""
        rewards = np.array(list(itertools.product([0.0, 1.0], repeat=n)))
        probability = np.prod(np.where(rewards == 1, p, 1 - p), axis=1)
        scores = np.where(rewards == 1, 1 / p, -1 / (1 - p))
        estimates = np.mean(maxrl_advantages(rewards, np.ones_like(rewards)) * scores, axis=1)
        expected = sum((1 - p) ** (k - 1) for k in range(1, n))  # ∇pass@k / k
        np.testing.assert_allclose(probability @ estimates, expected, rtol=1e-5)

    def test_edges(self):
        rewards = np.array([[0.0, 0, 0], [1, 1, 1], [1, 0, np.nan], [0.5, 0.1, np.nan], [1, np.nan, np.nan]])
        ours = maxrl_advantages(rewards, np.isfinite(rewards))
        expected = [[0, 0, 0], [0, 0, 0], [1, -1, 0], [2 / 3, -2 / 3, 0], [0, 0, 0]]
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


class TestGroupAdvantages:
    def test_match_verl(self):
        """Vectors of verl's GRPO (unbiased std, with and without division) and RLOO (torch, float64)."""
        grpo = grpo_advantages(REWARDS, MASK, unbiased_std=True)
        a, b = 0.8660239037870368, 0.7071057811879616
        np.testing.assert_allclose(grpo, [[a, -a, a, -a], [-b, b, 0, 0]], rtol=1e-6)
        mean = mean_advantages(REWARDS, MASK)
        np.testing.assert_allclose(mean, [[0.5, -0.5, 0.5, -0.5], [-0.5, 0.5, 0, 0]])
        rloo = rloo_advantages(REWARDS, MASK)
        np.testing.assert_allclose(rloo, [[2 / 3, -2 / 3, 2 / 3, -2 / 3], [-1, 1, 0, 0]], rtol=1e-6)

    @pytest.mark.parametrize("rewards", [[1, 0, 0, 1, 0], [1, -1, -1, 1, -1], [0.2, 0.5, 1, 0.1, 0]])
    def test_pass_at_k_reads_the_verdicts_and_no_reward(self, rewards):
        right = np.array([True, False, False, True, False])
        wanted = pass_at_k_advantages(right, np.ones(5), k=2)
        assert np.abs(wanted).max() > 0.3
        rewards = np.array(rewards, np.float32)
        found = group_advantages(rewards, np.ones(5), estimator="pass_at_k", k=2, right=right)
        np.testing.assert_array_equal(found, wanted)
        with pytest.raises(ValueError, match="asks which responses are right: pass right="):
            group_advantages(rewards, np.ones(5), estimator="pass_at_k", k=2)

    def test_the_reward_itself_has_no_baseline(self):
        np.testing.assert_array_equal(group_advantages(REWARDS, MASK, estimator="reward"), [[1, 0, 1, 0], [0, 1, 0, 0]])

    @pytest.mark.parametrize(("estimator", "factor"), [("mean", 2), ("rloo", 2), ("grpo", 1)])
    def test_rewards_of_plus_and_minus_one_have_twice_the_spread(self, estimator, factor):
        rewards = np.array([1.0, 0.0, 0.25])
        wide = ranged_rewards(rewards, "minus_one_one")
        assert wide.tolist() == [1.0, -1.0, -0.5]
        np.testing.assert_array_equal(graded_values(wide, "minus_one_one"), rewards)
        assert ranged_rewards(rewards, "zero_one") is rewards is graded_values(rewards, "zero_one")
        ours, narrow = (group_advantages(r, np.ones(3), estimator=estimator) for r in (wide, rewards))
        np.testing.assert_allclose(ours, factor * np.asarray(narrow), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    @pytest.mark.parametrize(
        ("rewards", "mask"),
        [
            ([1.0, 1.0, 1.0], [1, 1, 1]),
            ([0.9, 0.9, 0.9], [1, 1, 1]),  # whose float32 mean is not 0.9
            ([0.7, 0.0, np.nan], [1, 0, 0]),
            ([np.nan, np.inf, 0.0], [0, 0, 0]),
        ],
        ids=["all right", "equal fractions", "group of one", "empty"],
    )
    def test_no_signal_is_exactly_zero_with_finite_gradient(self, estimator, rewards, mask):
        for unbiased in (False, True):
            value, gradient = weighted_sum(jnp.array(rewards), jnp.array(mask), estimator, unbiased)
            assert value == 0.0
            assert np.isfinite(gradient).all()

    def test_unknown_estimator_is_named(self):
        with pytest.raises(ValueError, match="'gae'; expected grpo, rloo, mean"):
            group_advantages(REWARDS, MASK, estimator="gae")


class TestFR3EAdvantages:
    rewards = np.array([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], np.float32)

    def test_hand_computed_trajectory(self):
        advantages, values, alphas = fr3e_advantages(self.rewards, np.ones((3, 4)), 0.5, np.ones(3))
        np.testing.assert_array_equal(values, [0.25, 1.0, 0.5])
        np.testing.assert_allclose(alphas, np.exp([0.25, -0.75, 0.5]), rtol=1e-6)
        np.testing.assert_allclose(advantages[0], np.exp(0.25) * np.array([0.75, -0.25, -0.25, -0.25]), rtol=1e-6)
        np.testing.assert_array_equal(advantages[1], np.zeros(4))
        np.testing.assert_allclose(advantages[2], np.exp(0.5) * np.array([0.5, 0.5, -0.5, -0.5]), rtol=1e-6)

    @pytest.mark.parametrize("modulation", ["none", "exp", "sharpen"])
    def test_token_mean_is_zero_for_equal_lengths_in_a_block(self, modulation):
        """FR3E, appendix C: Σ_j α_j L_j Σ_m (r_{j,m} − V(S_j)) = 0, whatever α_j and L_j."""
        rng = np.random.default_rng(0)
        rewards = rng.integers(0, 2, size=(10, 4, 8)).astype(np.float32)
        lengths = rng.integers(1, 30, size=(10, 4, 1))
        initial = rng.integers(0, 9, size=10) / 8
        advantages, _, _ = fr3e_advantages(
            rewards, np.ones((10, 4, 8)), initial, np.ones((10, 4)), modulation=modulation
        )
        token_sums = np.sum(np.asarray(advantages) * lengths, axis=(1, 2))
        np.testing.assert_allclose(token_sums, np.zeros(10), atol=1e-4)
        assert np.abs(advantages).max() > 0.5

    def test_missing_states_and_rollouts_change_nothing_for_the_others(self):
        rewards, mask = np.full((5, 6), np.nan, np.float32), np.zeros((5, 6))
        rewards[[0, 2, 3], :4], mask[[0, 2, 3], :4] = self.rewards, 1
        mask[1], rewards[1] = 1, 1.0  # rewarded, but not a state of this trajectory; the last has no rollouts
        valid = np.array([1, 0, 1, 1, 1])
        found = fr3e_advantages(rewards, mask, 0.5, valid)
        expected = fr3e_advantages(self.rewards, np.ones((3, 4)), 0.5, np.ones(3))
        np.testing.assert_array_equal(found[0][np.array([0, 2, 3]), :4], expected[0])
        np.testing.assert_array_equal(found[2], [expected[2][0], 1, expected[2][1], expected[2][2], 1])
        np.testing.assert_array_equal(np.asarray(found[0])[mask * valid[:, None] == 0], 0)
        np.testing.assert_array_equal(found[1], [0.25, 0, 1.0, 0.5, 0])

    def test_options_reach_their_formulas(self):
        call = dict(mask=np.ones((3, 4)), initial_value=0.5, valid=np.ones(3))
        scaled, _, alphas = fr3e_advantages(self.rewards, **call, estimator="grpo", unbiased_std=True)
        expected = grpo_advantages(self.rewards, np.ones((3, 4)), unbiased_std=True)
        np.testing.assert_allclose(scaled, np.asarray(expected) * np.asarray(alphas)[:, None], rtol=1e-6)
        _, _, sharp = fr3e_advantages(self.rewards, **call, modulation="sharpen")
        _, _, fresh = fr3e_advantages(self.rewards, **call, modulation="sharpen", fresh=True)
        assert (np.abs(np.log(fresh)) < np.abs(np.log(sharp))).all()  # δ_0 joins the sum


class TestBlockCredit:
    def test_hand_computed_credit(self):
        credit = block_credit(np.array([0.5, 0.25]), 0.125, 1.0, np.ones(2))
        np.testing.assert_allclose(credit, [0.375, -0.25, 0.75])

    def test_missing_states_cut_no_block(self):
        credit = block_credit(np.array([np.nan, 0.5, np.nan, 0.25]), 0.125, 1.0, np.array([0, 1, 0, 1]))
        np.testing.assert_allclose(credit, [0.375, -0.25, 0.75, 0.0, 0.0])
        np.testing.assert_allclose(block_credit(np.zeros(2), 0.25, 0.0, np.zeros(2)), [-0.25, 0.0, 0.0])

    def test_credit_sums_to_the_advantage_of_the_whole_response(self):
        """Σ_j (V(S_{j+1}) − V(S_j)) = r − V(S_0), for any set of valid states."""
        values = np.random.default_rng(0).uniform(size=(8, 3))
        valid = np.array(list(itertools.product([0, 1], repeat=3)))
        final, initial = np.arange(8) % 2, np.linspace(0, 1, 8)
        credit = block_credit(values, initial, final, valid)
        np.testing.assert_allclose(np.sum(credit, axis=-1), final - initial, atol=1e-6)

    def test_blocks_are_numbered_as_block_index_numbers_them(self):
        anchors, valid = np.array([2, 9, 5]), np.array([True, False, True])
        credit = block_credit(np.array([0.5, np.nan, 0.25]), 0.125, 1.0, valid)
        per_token = np.asarray(credit)[np.asarray(block_index(anchors, valid, 7, 7))]
        np.testing.assert_allclose(per_token, [0.375] * 2 + [-0.25] * 3 + [0.75] * 2)


def test_whitening_leaves_mean_zero_and_deviation_one():
    tokens = np.random.default_rng(0).normal(3.0, 2.0, 500).astype(np.float32)
    mean, scale = whitening(tokens)
    white = (tokens.astype(np.float64) - mean) * scale
    np.testing.assert_allclose([white.mean(), white.std()], [0.0, 1.0], atol=1e-12)


def test_whitening_of_equal_advantages_or_none_scales_to_zero():
    assert whitening(np.full(5, 0.7, np.float32))[1] == 0.0
    assert whitening(np.zeros(0, np.float32)) == (0.0, 0.0)
