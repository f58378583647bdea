"""Groups without signal, and how a group gets one: enough responses of both kinds. On the host.

`fr3e_jax.loop.first_return` rejects prompts by them, `fr3e_jax.loop.explore` states.

Dimension key: M rewards of a group (base rollouts of a prompt, or branches of a state); `batch` is any leading axes.
"""

from __future__ import annotations

import numpy as np


def is_degenerate(rewards: np.ndarray) -> bool:
    """True if r_1 = … = r_M: the group has no advantage to learn from. (FR3E, 3.2.) ``rewards``: ``[M]``, M ≥ 1."""
    return bool(np.all(rewards == rewards[0]))


def has_both_kinds(right: np.ndarray, count: int) -> bool:
    """True if ⌊n/2⌋ are right and ⌈n/2⌉ wrong, enough for a balanced group of n = ``count``. ``right``: bool ``[M]``.

    (Reinforce-Ada-balance, Xiong et al. 2025, arXiv:2510.04996.)
    """
    return bool(np.sum(right) >= count // 2 and np.sum(~right) >= count - count // 2)


def balanced_group(right: np.ndarray, count: int) -> np.ndarray:
    """Indices, rising, of at most ``count`` responses: the first ⌊n/2⌋ right ones and the first ⌈n/2⌉ wrong ones.

    Where one kind is short, the other takes its place. (Reinforce-Ada, Xiong et al. 2025.) ``right``: bool ``[M]``.
    """
    rights, wrongs = np.flatnonzero(right), np.flatnonzero(~right)
    taken = rights[: max(count // 2, count - len(wrongs))]
    return np.sort(np.concatenate([taken, wrongs[: count - len(taken)]]))
