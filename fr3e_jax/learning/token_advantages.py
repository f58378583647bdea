"""Advantages that need more than rewards: a critic's values, a divergence in the reward, statistics of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fr3e_jax.configuration.schema import AdvantageConfig, KlConfig
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.mini_batches import PerToken, nested, stacked, trained_tokens
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.objectives.advantages import whitening
from fr3e_jax.programs.explore_programs import group_advantages
from fr3e_jax.programs.shaping_programs import generalised_advantages, token_divergences


@dataclass
class Estimates:
    """The result of `estimate_advantages`, per token of the batch."""

    advantages: PerToken
    returns: PerToken | None  # the critic's targets; None: there is no critic
    metrics: dict[str, float]


def estimates_after_scoring(kl: KlConfig, advantage: AdvantageConfig) -> bool:
    """True if advantages depend on log-probs, values or the batch as a whole."""
    in_reward = kl.coefficient > 0 and kl.place == "reward"
    return advantage.base_estimator == "gae" or in_reward or advantage.normalise_batch


def estimate_advantages(
    setup: LearningSetup, batch: list[TrainingTrunk], old: PerToken, reference: PerToken | None, values: PerToken | None
) -> Estimates:
    """Estimate the advantages of the batch per token.

    With ``kl.place=reward`` each token earns −β k(π_old, π_ref), and the last one the response's reward on top. With a
    critic, GAE reads these token rewards. Group estimators read their sum over a response. The estimator ``reward``
    (REINFORCE++) sums them from each token on.

    Args:
      setup: the settings.
      batch: the full batch; it is not changed.
      old: log-probs before the first update.
      reference: log-probs of the reference policy; None: the method has none.
      values: the critic's values; None: the method has no critic.
    """
    config, metrics, returns = setup.config, {}, None
    advantages = [[branch.advantages for branch in trunk.branches] for trunk in batch]
    divergences = None
    if config.kl.coefficient and config.kl.place == "reward":
        divergences = _divergences(config.kl.estimator, batch, old, reference)
        metrics["kl/reward"] = float(trained_tokens(batch, divergences).mean())
    if config.advantage.base_estimator == "gae":
        advantages, returns = _generalised(setup, batch, _token_rewards(setup, batch, divergences), values)
    elif divergences is not None:
        rewards = _token_rewards(setup, batch, divergences)
        if config.advantage.base_estimator == "reward":
            advantages, _ = _generalised(setup, batch, rewards, None)
        else:
            advantages = _grouped(config.advantage, rewards)
    if config.advantage.normalise_batch:
        advantages = _normalised(batch, advantages)
    return Estimates(advantages, returns, metrics)


def _divergences(estimator: str, batch: list[TrainingTrunk], old: PerToken, reference: PerToken) -> PerToken:
    """k(π_old, π_ref) of each token; 0 for tokens that do not train."""
    divergences = token_divergences(stacked(old), stacked(reference), estimator=estimator)
    return nested(batch, np.where(_trained_mask(batch), divergences, 0.0))


def _token_rewards(setup: LearningSetup, batch: list[TrainingTrunk], divergences: PerToken | None) -> PerToken:
    """The branch's reward at its last trained token, less β times the divergences."""
    token_rewards: PerToken = []
    for position, trunk in enumerate(batch):
        token_rewards.append([])
        for index, branch in enumerate(trunk.branches):
            rewards = np.zeros(len(branch.token_ids), np.float32)
            if divergences is not None:
                rewards -= setup.config.kl.coefficient * divergences[position][index]
            if branch.trains.any():
                rewards[np.flatnonzero(branch.trains)[-1]] += branch.reward
            token_rewards[-1].append(rewards.astype(np.float32))
    return token_rewards


def _generalised(
    setup: LearningSetup, batch: list[TrainingTrunk], rewards: PerToken, values: PerToken | None
) -> tuple[PerToken, PerToken]:
    """Advantages and returns of every branch by GAE; without ``values`` the sum of rewards from each token on."""
    c = setup.config.critic
    by_token = stacked(rewards)
    old_values = np.zeros_like(by_token) if values is None else stacked(values)
    gamma, lam = (1.0, 1.0) if values is None else (c.gamma, c.lam)
    advantages, returns = generalised_advantages(by_token, old_values, _trained_mask(batch), gamma=gamma, lam=lam)
    return nested(batch, advantages), nested(batch, returns)


def _grouped(a: AdvantageConfig, rewards: PerToken) -> PerToken:
    """Group advantages from the sums of the branches' token rewards, constant over each branch."""
    advantages = []
    for row in rewards:
        sums = np.array([[array.sum() for array in row]], np.float32)
        estimates = group_advantages(sums, estimator=a.base_estimator, unbiased_std=a.unbiased_std)[0]
        advantages.append([np.full(len(array), value, np.float32) for array, value in zip(row, estimates, strict=True)])
    return advantages


def _normalised(batch: list[TrainingTrunk], advantages: PerToken) -> PerToken:
    """(A − mean) / std over the batch's trained tokens. (REINFORCE++; PPO's whitening.)"""
    mean, scale = whitening(trained_tokens(batch, advantages))
    return [[((a - mean) * scale).astype(np.float32) for a in row] for row in advantages]


def _trained_mask(batch: list[TrainingTrunk]) -> np.ndarray:
    """The tokens that train, bool ``[branches of the batch, T]``."""
    return stacked([[branch.trains for branch in trunk.branches] for trunk in batch])
