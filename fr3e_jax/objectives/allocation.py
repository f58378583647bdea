"""Division of an exploration budget: more rollouts where the need is larger, with the total unchanged. On the host."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


def divide_rollouts(needs: Sequence[float], total: int, *, least: int, most: int) -> np.ndarray:
    """Rollouts of each state, ``[J]`` int, in proportion to its need, each between ``least`` and ``most``.

    Webster's method of highest averages: after ``least`` for each, the next one goes where need / (2 count + 1) is
    largest; ties go to the smaller count, then to the earlier state. So the sum is ``total`` exactly, and equal needs
    get equal counts where ``total`` is a multiple of J.

    Args:
      needs: not negative; zero needs are met last.
      total: rollouts of all states together.

    Raises:
      ValueError: ``total`` cannot be divided within the bounds, or a need is negative or NaN.
    """
    states = len(needs)
    if not states * least <= total <= states * most:
        raise ValueError(
            f"{total} rollouts cannot be divided over {states} states with {least} to {most} each: expected a total "
            f"from {states * least} to {states * most}"
        )
    if any(not need >= 0 for need in needs):
        raise ValueError(f"found the needs {list(needs)}; expected numbers that are not negative")
    counts = np.full(states, least)
    waiting = [(-need / (2 * least + 1), least, state) for state, need in enumerate(needs)]
    heapq.heapify(waiting)
    for _ in range(total - states * least):
        _, count, state = heapq.heappop(waiting)
        counts[state] = count + 1
        if count + 1 < most:
            heapq.heappush(waiting, (-needs[state] / (2 * count + 3), count + 1, state))
    return counts
