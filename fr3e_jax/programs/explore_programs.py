"""Anchors and advantages for many rollouts at once: the objectives, compiled over padded batches.

NumPy in, NumPy out. Batches are padded to powers of two, so that few shapes are compiled.

Dimension key: P prompts, R base rollouts, J states S_0..S_K, M branches per state, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fr3e_jax.objectives.advantages import block_credit, fr3e_advantages
from fr3e_jax.objectives.advantages import group_advantages as estimated_advantages
from fr3e_jax.objectives.anchors import (
    AnchorRules,
    block_index,
    boundary_anchors,
    select_anchors,
    uniform_anchors,
)
from fr3e_jax.objectives.rollout_tree import tree_advantages
from fr3e_jax.objectives.values import state_values, trajectory_modulation
from fr3e_jax.programs.program import Program
from fr3e_jax.programs.size_buckets import padded, power_of_two

_LEAST_ROWS = 64


@partial(Program, static_argnames=("selection", "rules"))
def _select_anchors(sources, lengths, sampled, *, selection: str, rules: AnchorRules):
    def anchors_of(source, n, mask):
        if selection == "delimiter":
            return boundary_anchors(source, n, rules, mask)
        if selection == "uniform":
            return uniform_anchors(n, rules, T=sources.shape[1], sampled=mask)
        return select_anchors(-source if selection == "logprob" else source, n, rules, mask)

    return jax.vmap(anchors_of)(sources, lengths, sampled)


def find_anchors(
    sources: Sequence[np.ndarray],
    rules: AnchorRules,
    *,
    selection: str,
    sampled: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Anchor positions of each response, rising; at most ``rules.num_anchors`` each.

    ``sources``: per response the ``[T]`` array that ``selection`` reads:

    - ``entropy``: H_k; the highest win (FR3E, eq. 5 and 7);
    - ``logprob``: log π(t_k); the least likely drawn tokens win (FR3E, 3.4; the authors' code);
    - ``gradient``: the update magnitudes G_k; the largest win (Deng et al. 2025, eq. 4);
    - ``random``: uniform random numbers;
    - ``delimiter``: 1 at each step border and else 0;
    - ``uniform``: only its length counts.

    ``sampled``: bool ``[T]`` each, the tokens that no tool wrote; None: all.
    """
    if not sources:
        return []
    lengths = np.array([len(s) for s in sources], np.int32)
    rows, size = power_of_two(len(sources), _LEAST_ROWS), power_of_two(int(lengths.max()), 16)
    scores, masks = np.zeros((rows, size), np.float32), np.zeros((rows, size), bool)
    for row, source in enumerate(sources):
        scores[row, : len(source)] = source
        masks[row, : len(source)] = True if sampled is None else sampled[row]
    lengths = padded(lengths, rows)
    anchors, valid = jax.device_get(_select_anchors(scores, lengths, masks, selection=selection, rules=rules))
    return [a[v] for a, v in zip(anchors[: len(sources)], valid, strict=False)]


_block_index = Program(block_index, static_argnames="T")


def block_numbers(cuts: Sequence[int], length: int, num_blocks: int) -> np.ndarray:
    """The block of each of ``length`` response tokens, int32 ``[T]``: ``cuts`` open blocks 1, 2, ... (FR3E, eq. 8-9.)

    ``num_blocks``: the most that a response of this run has; it keeps the compiled shapes few.
    """
    opened = padded(np.asarray(cuts, np.int32), num_blocks - 1)
    blocks = _block_index(opened, np.arange(num_blocks - 1) < len(cuts), length, T=power_of_two(length, 16))
    return np.asarray(blocks)[:length]


_group_advantages = Program(estimated_advantages, static_argnames=("estimator", "unbiased_std", "k"))


def group_advantages(
    rewards: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    estimator: str,
    unbiased_std: bool = False,
    k: int = 4,
    right: np.ndarray | None = None,
) -> np.ndarray:
    """Advantages ``[P, R]`` of groups of rewards ``[P, R]``; see `group_advantages` of ``objectives.advantages``.

    ``mask``: bool ``[P, R]``, the rewards that exist; None: all. ``right``: bool ``[P, R]``; only ``pass_at_k`` reads
    it.
    """
    rows = power_of_two(len(rewards), _LEAST_ROWS)
    groups = padded(rewards.astype(np.float32), rows)
    verdicts = padded(right, rows) if estimator == "pass_at_k" and right is not None else None
    exists = np.ones(groups.shape, bool) if mask is None else padded(mask, rows)
    advantages = _group_advantages(groups, exists, estimator=estimator, unbiased_std=unbiased_std, k=k, right=verdicts)
    return np.asarray(advantages)[: len(rewards)]


@partial(Program, static_argnames=("estimator", "unbiased_std", "modulation", "fresh"))
def _trajectories(rewards, mask, base_value, final_reward, root_value, *, estimator, unbiased_std, modulation, fresh):
    valid = mask.any(axis=-1)
    start = state_values(rewards, mask)[:, 0] if fresh else base_value
    if estimator == "tree":
        values = state_values(rewards, mask).at[:, 0].set(start)
        advantages, credit = tree_advantages(rewards, mask, final_reward, root_value)
        return advantages, values, jnp.ones_like(values), credit
    later = (rewards[:, 1:], mask[:, 1:], start, valid[:, 1:])
    advantages, values, _ = fr3e_advantages(
        *later, estimator=estimator, modulation=modulation, fresh=fresh, unbiased_std=unbiased_std
    )
    alphas = trajectory_modulation(values, start, valid[:, 1:], variant=modulation, fresh=fresh)
    first = estimated_advantages(rewards[:, 0], mask[:, 0], estimator=estimator, unbiased_std=unbiased_std)
    advantages = jnp.concatenate([(alphas[:, :1] * first)[:, None], advantages], axis=1)
    credit = block_credit(values, start, final_reward, valid[:, 1:])
    return advantages, jnp.concatenate([start[:, None], values], axis=1), alphas, credit


def trajectory_advantages(
    rewards: np.ndarray,
    mask: np.ndarray,
    base_value: np.ndarray,
    final_reward: np.ndarray,
    root_value: np.ndarray | None = None,
    *,
    estimator: str,
    unbiased_std: bool,
    modulation: str,
    fresh: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Advantages, values, modulation and block credit of expanded base rollouts, before any group is filtered.

    Args:
      rewards, mask: ``[R, J, M]``; J counts S_0, whose row is empty unless ``fresh``; M is the largest group.
      base_value: ``[R]``, mean of the prompt's base rewards: V(S_0) unless ``fresh``.
      final_reward: ``[R]``, the base rollout's own.
      root_value: ``[R]``, mean reward of all leaves of the prompt; only the estimator ``tree`` reads it.
      estimator: of state groups; ``tree`` (`objectives.rollout_tree`) modulates nothing and gives blocks their own
        credit.
      fresh: V(S_0) is the mean of its own fresh rollouts, which train too.

    Returns:
      advantages ``[R, J, M]``; values, alphas ``[R, J]``; block credit ``[R, J]`` (as many blocks as states).
    """
    rows = power_of_two(len(rewards), _LEAST_ROWS)
    root_value = np.zeros(len(rewards)) if root_value is None else root_value
    floats = [x.astype(np.float32) for x in (rewards, base_value, final_reward, root_value)]
    rewards, *of_bases = (padded(x, rows) for x in floats)
    results = _trajectories(
        rewards,
        padded(mask, rows),
        *of_bases,
        estimator=estimator,
        unbiased_std=unbiased_std,
        modulation=modulation,
        fresh=fresh,
    )
    return tuple(np.asarray(x)[: len(mask)] for x in results)
