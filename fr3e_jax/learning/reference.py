"""Resets of the reference to the policy: every n steps, or when the reward has stopped rising.

Source: ProRL (Liu et al. 2025), section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.configuration.schema import KlConfig


@dataclass
class ReferenceResets:
    """The best reward since the last reset and the steps without a better one; part of a checkpoint."""

    best_reward: float | None = None
    steps_without_gain: int = 0

    def due(self, kl: KlConfig, step: int, reward: float | None) -> bool:
        """Record the reward of ``step``; return whether to reset the reference after it.

        Args:
          kl: the settings of the divergence.
          step: full batches trained on.
          reward: mean reward of the step's base rollouts; None: the step sampled nothing.
        """
        if not kl.coefficient:
            return False
        if reward is None:
            pass
        elif self.best_reward is None or reward > self.best_reward:
            self.best_reward, self.steps_without_gain = reward, 0
        else:
            self.steps_without_gain += 1
        stuck = bool(kl.reset_on_plateau) and self.steps_without_gain >= kl.reset_on_plateau
        due = stuck or (bool(kl.reset_every) and step % kl.reset_every == 0)
        if due:
            self.best_reward, self.steps_without_gain = None, 0
        return due
