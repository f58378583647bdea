"""The size of a round: as many prompts as the batch still needs, by the prompts' running yield or for certain."""

from __future__ import annotations

import math
from dataclasses import dataclass

DECAY = 0.9  # of the running sums, per round


@dataclass
class Yield:
    """Rollouts that train for each sampled prompt, older rounds with less weight; part of a checkpoint."""

    prompts: float = 0.0
    rollouts: float = 0.0

    def observe(self, prompts: int, rollouts: int) -> None:
        """Count a round: the prompts that it sampled, and the rollouts that it gave the batch."""
        self.prompts, self.rollouts = DECAY * self.prompts + prompts, DECAY * self.rollouts + rollouts

    def prompts_for(self, missing: int, most: int, guess: float) -> int:
        """The prompts that ``missing`` rollouts need, 1 to ``most``; ``most`` if no prompt has given any so far.

        ``guess``: rollouts of a prompt, before the first round.
        """
        prompts, rollouts = (self.prompts, self.rollouts) if self.prompts else (1.0, guess)
        return min(most, max(1, math.ceil(missing * prompts / rollouts))) if rollouts else most


def certain_rounds(missing: int, prompts: int, rollouts: int, *, last: bool) -> int:
    """Whole rounds that a batch needs even if every rollout trains; they can be sampled as one stream of prompts.

    Args:
      missing: rollouts that the batch lacks.
      prompts, rollouts: prompts of a round, rollouts of each.
      last: whether the round that may fill the batch counts too, because it is as large as the others.
    """
    of_a_round = prompts * rollouts
    return -(-missing // of_a_round) if last else missing // of_a_round
