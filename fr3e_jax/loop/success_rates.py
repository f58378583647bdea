"""Running estimates of how often each problem is solved, and the rollouts that its next group gets by them.

(Knapsack RL, Li et al. 2025, arXiv:2509.25849.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fr3e_jax.configuration.schema import RolloutConfig
from fr3e_jax.data.stream import Prompt
from fr3e_jax.loop.expansion import PromptGroup
from fr3e_jax.objectives.allocation import knapsack_rollouts

DECAY = 0.5  # of earlier groups of a problem, with each new one
LEAST = 2  # rollouts of a prompt
MOST = 8  # times rollouts_per_prompt: 128 of 16, the paper's bound


@dataclass
class SuccessRates:
    """Right rollouts and all rollouts of each problem, by its id, older ones with less weight; part of a checkpoint."""

    counts: dict[str, list[float]] = field(default_factory=dict)

    def observe(self, groups: Sequence[PromptGroup]) -> None:
        """Count the rollouts of a round."""
        for group in groups:
            right, total = self.counts.get(group.problem.id, (0.0, 0.0))
            found = float(np.sum(group.right)), int(group.graded.sum())
            self.counts[group.problem.id] = [DECAY * right + found[0], DECAY * total + found[1]]

    def rate(self, problem_id: str) -> float | None:
        """The mean of the posterior (r + 1) / (n + 2): what was never solved may still be; None: never sampled."""
        right, total = self.counts.get(problem_id, (0.0, 0.0))
        return (right + 1) / (total + 2) if total else None

    def rollouts(self, prompts: Sequence[Prompt], rollout: RolloutConfig) -> list[int]:
        """Rollouts of each prompt, ``rollouts_per_prompt`` on average, and as many for a prompt without an estimate."""
        usual = rollout.rollouts_per_prompt
        counts = np.full(len(prompts), usual)
        if rollout.allocation == "knapsack":
            rates = {n: rate for n, prompt in enumerate(prompts) if (rate := self.rate(prompt.problem.id)) is not None}
            counts[list(rates)] = knapsack_rollouts(
                [*rates.values()], usual * len(rates), least=LEAST, most=MOST * usual
            )
        return counts.tolist()
