"""Division of a budget of rollouts among prompts. On the host."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


def knapsack_rollouts(success_rates: Sequence[float], total: int, *, least: int, most: int) -> np.ndarray:
    """Rollouts of each prompt, ``[P]`` int, that maximise Σ (1 − pⁿ − (1 − p)ⁿ) p (1 − p)² with Σ n = ``total``.

    The first factor is the probability that n rollouts differ, the rest is how much the prompt is expected to gain from
    them. (Knapsack RL, Li et al. 2025, arXiv:2509.25849.) The value is concave in n: one rollout after another, each
    where it adds most, is the optimum. Ties go to the smaller count, then to the earlier prompt.

    Args:
      success_rates: p of each prompt, 0 to 1.
      total: rollouts of all prompts together.
      least, most: bounds of n.

    Raises:
      ValueError: ``total`` cannot be divided within the bounds, or a rate is none.
    """
    prompts = len(success_rates)
    if not prompts * least <= total <= prompts * most:
        raise ValueError(
            f"{total} rollouts cannot be divided over {prompts} prompts with {least} to {most} each: expected a total "
            f"from {prompts * least} to {prompts * most}"
        )
    if any(not 0 <= p <= 1 for p in success_rates):
        raise ValueError(f"found the success rates {list(success_rates)}; expected numbers from 0 to 1")

    def gain(p: float, n: int) -> float:
        """Return the value that rollout n + 1 adds."""
        return (p**n * (1 - p) + (1 - p) ** n * p) * p * (1 - p) ** 2

    counts = np.full(prompts, least)
    waiting = [(-gain(p, least), least, prompt) for prompt, p in enumerate(success_rates)]
    heapq.heapify(waiting)
    for _ in range(total - prompts * least):
        _, count, prompt = heapq.heappop(waiting)
        counts[prompt] = count + 1
        if count + 1 < most:
            heapq.heappush(waiting, (-gain(success_rates[prompt], count + 1), count + 1, prompt))
    return counts
