"""When the policy becomes its own reference: every n steps, or when its reward has stopped to rise. (ProRL.)"""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.configuration.schema import KlConfig


@dataclass
class ReferenceResets:
    """What is known of the rewards since the last reset; part of a checkpoint."""

    best_reward: float | None = None
    steps_without_gain: int = 0

    def due(self, kl: KlConfig, step: int, reward: float | None) -> bool:
        """Whether to reset after ``step`` (full batches), whose base rollouts earned ``reward`` on average.

        None: the step trained on what was carried over, and sampled nothing.
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
