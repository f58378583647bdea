"""Advantages after scoring: token rewards, GAE, groups and the batch's statistics, against plain loops."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.mini_batches import trained_tokens
from fr3e_jax.learning.token_advantages import estimate_advantages, estimates_after_scoring

BASES = {"explore__enabled": False}
IN_REWARD = BASES | {"kl__coefficient": 0.5, "kl__place": "reward"}


def draw_batch() -> list[TrainingTrunk]:
    """Two prompts; one response of one token, one with a gap that does not train."""
    rng, batch = np.random.default_rng(3), []
    for lengths in ((4, 1, 6), (5, 3, 2)):
        branches = []
        for n in lengths:
            mask = None if n != 6 else np.array([1, 1, 0, 0, 1, 1], bool)
            branches.append(
                TrainingBranch(
                    2,
                    np.arange(n, dtype=np.int32),
                    np.full(n, 9, np.float32),
                    np.zeros(n, np.float32),
                    reward=float(rng.integers(0, 2)),
                    loss_mask=mask,
                )
            )
        batch.append(TrainingTrunk(np.arange(2, dtype=np.int32), branches, step=1, prompt_tokens=2))
    batch[0].branches[0].reward, batch[0].branches[1].reward = 1.0, 0.0
    return batch


BATCH = draw_batch()


def draw(seed: int):
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=len(b.token_ids)).astype(np.float32) for b in trunk.branches] for trunk in BATCH]


OLD, REFERENCE, VALUES = draw(0), draw(1), draw(2)


def token_rewards(i: int, j: int, beta: float = 0.0, estimator=lambda gap: gap) -> list[float]:
    """The rewards of the tokens that train."""
    branch = BATCH[i].branches[j]
    gap = (OLD[i][j] - REFERENCE[i][j])[branch.trains].astype(np.float64)
    rewards = -beta * estimator(gap)
    rewards[-1] += branch.reward
    return rewards.tolist()


def estimates(session, tiny_run, **settings):
    twin = tiny_run.changed(session, **settings)
    assert estimates_after_scoring(twin.config.kl, twin.config.advantage)
    return estimate_advantages(twin.learning, copy.deepcopy(BATCH), OLD, REFERENCE, VALUES)


def test_estimators_of_rewards_alone_need_no_scores(session, tiny_run):
    in_loss = tiny_run.changed(session, kl__coefficient=0.5).config
    for config in (session.config, in_loss):
        assert not estimates_after_scoring(config.kl, config.advantage)


@pytest.mark.parametrize("gamma, lam", [(1.0, 1.0), (0.9, 0.8)])
def test_generalised_advantages_skip_tokens_that_do_not_train(session, tiny_run, gamma, lam):
    settings = BASES | {"advantage__base_estimator": "gae", "critic__gamma": gamma, "critic__lam": lam}
    found = estimates(session, tiny_run, **settings)
    for i, trunk in enumerate(BATCH):
        for j, branch in enumerate(trunk.branches):
            rewards, values = token_rewards(i, j), [*VALUES[i][j][branch.trains].astype(float), 0.0]
            expected, after = [], 0.0
            for t in reversed(range(len(rewards))):
                after = rewards[t] + gamma * values[t + 1] - values[t] + gamma * lam * after
                expected.insert(0, after)
            np.testing.assert_allclose(found.advantages[i][j][branch.trains], expected, rtol=1e-4, atol=1e-5)
            returns = np.array(expected) + values[:-1]
            np.testing.assert_allclose(found.returns[i][j][branch.trains], returns, rtol=1e-4, atol=1e-5)


def test_a_divergence_in_the_reward_counts_from_each_token_on(session, tiny_run):
    """REINFORCE++: no baseline, the sum of the rewards still to come."""
    found = estimates(session, tiny_run, **IN_REWARD, advantage__base_estimator="reward", kl__estimator="k2")
    divergences = []
    for i, trunk in enumerate(BATCH):
        for j, branch in enumerate(trunk.branches):
            rewards = token_rewards(i, j, 0.5, lambda gap: gap**2 / 2)
            expected = np.cumsum(rewards[::-1])[::-1]
            np.testing.assert_allclose(found.advantages[i][j][branch.trains], expected, rtol=1e-4, atol=1e-5)
            divergences.append((branch.reward - sum(rewards)) / 0.5)
    tokens = sum(int(b.trains.sum()) for trunk in BATCH for b in trunk.branches)
    assert found.metrics["kl/reward"] == pytest.approx(sum(divergences) / tokens, rel=1e-4)


def test_groups_read_the_sum_of_a_responses_rewards(session, tiny_run):
    found = estimates(session, tiny_run, **IN_REWARD, kl__estimator="k1", advantage__base_estimator="grpo")
    for i, trunk in enumerate(BATCH):
        sums = np.array([sum(token_rewards(i, j, 0.5)) for j in range(len(trunk.branches))])
        expected = (sums - sums.mean()) / (sums.std() + 1e-6)
        for j, value in enumerate(expected):
            np.testing.assert_allclose(found.advantages[i][j], np.full(len(OLD[i][j]), value), rtol=1e-3, atol=1e-4)


def test_the_batch_is_normalised_over_its_trained_tokens(session, tiny_run):
    settings = BASES | {"advantage__base_estimator": "gae", "advantage__normalise_batch": True}
    tokens = trained_tokens(BATCH, estimates(session, tiny_run, **settings).advantages)
    plain = trained_tokens(BATCH, estimates(session, tiny_run, **BASES, advantage__base_estimator="gae").advantages)
    np.testing.assert_allclose(tokens, (plain - plain.mean()) / plain.std(), rtol=1e-4, atol=1e-5)


def test_equal_advantages_are_normalised_to_zero(session, tiny_run):
    found = estimates(session, tiny_run, **BASES, advantage__normalise_batch=True)
    assert not trained_tokens(BATCH, found.advantages).any()
