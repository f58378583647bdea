"""Branches whose first tokens are those of their trunk: they pass the network once, as the trunk.

A base rollout that trains beside the branches of its states is such a branch. Its trunk is prompt and response, cut
after the largest fork. Only what follows that fork needs positions of its own (`fr3e_jax.policy.rows`):

    trunk    p0 p1 r0 r1 r2        of prompt p and response r; the other branches have forks of at most 5
    base     fork 2: r0 to r5      r0 to r2 lie on the trunk; r3 to r5 are a branch with fork 5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fr3e_jax.configuration.schema import ExploreConfig


def trains_trunks(explore: ExploreConfig) -> bool:
    """True if a run trains base rollouts beside the branches of their states."""
    return explore.enabled and explore.block_credit and explore.train_states


def owns_of(explore: ExploreConfig, forks: Sequence[Sequence[int]]) -> list[list[bool]]:
    """Which branches are bases on their own trunk, in plans that name the base as its trunk's last branch.

    ``forks[i][b]``: of branch b of trunk i. A trunk whose branches all have one fork is a prompt.
    """
    trains = trains_trunks(explore)
    return [[trains and index == len(row) - 1 and row[-1] < max(row) for index in range(len(row))] for row in forks]


class PlannedSizes(NamedTuple):
    """The input of `fr3e_jax.learning.row_planner.plan_rows`; all ``[trunk][branch]``."""

    forks: Sequence[Sequence[int]]
    lengths: Sequence[Sequence[int]]
    on_trunk: Sequence[Sequence[int]]  # how many of a branch's first tokens lie on its trunk


def planned_sizes(
    forks: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]], owns: Sequence[Sequence[bool]]
) -> PlannedSizes:
    """The branches without the tokens that lie on their trunks; arguments of `tokens_on_trunk`, trunk by trunk."""
    counts = [tokens_on_trunk(*sizes) for sizes in zip(forks, lengths, owns, strict=True)]

    def moved(rows, sign):
        return [
            [size + sign * count for size, count in zip(*row, strict=True)] for row in zip(rows, counts, strict=True)
        ]

    return PlannedSizes(moved(forks, 1), moved(lengths, -1), counts)


def tokens_on_trunk(forks: Sequence[int], lengths: Sequence[int], trains_on_trunk: Sequence[bool]) -> list[int]:
    """For each branch of a trunk, how many of its first tokens lie on the trunk; at least its last one does not.

    Args:
      forks, lengths: trunk positions that each branch sees, and its tokens.
      trains_on_trunk: the branches whose tokens are the trunk's; the first of them counts.
    """
    counts = [0] * len(forks)
    if any(trains_on_trunk):
        base = list(trains_on_trunk).index(True)
        others = [fork for index, fork in enumerate(forks) if index != base]
        counts[base] = min(max(others, default=0) - forks[base], lengths[base] - 1)
    return [max(count, 0) for count in counts]
