"""Advantages from the tree that exploration grows: every node has the mean reward of its leaves as its value.

An expanded base response with its states is a tree. Its blocks B_1..B_{K+1} form the stem, each block a node that ends
in the next state; the rollouts of S_j are leaves below B_j, those of S_0 = q below the root, as the last block is:

    q ── B_1 ── B_2 ── B_3 (the base's own end, a leaf)        leaves below B_1: 2M + 1
          ├ M      └ M rollouts of S_2                         leaves below B_2:  M + 1
          └ rollouts of S_1                                    leaves below B_3:      1

Dimension key: J states S_0..S_K, M rollouts per state; `batch` is any leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, Number, checked_shapes
from fr3e_jax.objectives.reductions import masked_mean


@checked_shapes
def tree_advantages(
    rewards: Shaped[AnyArray, "*batch J M"],
    mask: Shaped[AnyArray, "*batch J M"],
    final_reward: Number | Shaped[AnyArray, "*batch"],
    root_value: Number | Shaped[AnyArray, "*batch"],
) -> tuple[Float[jax.Array, "*batch J M"], Float[jax.Array, "*batch J"]]:
    """A(s) = [(V(s) − V(root)) + (V(s) − V(parent of s))] / √|L(s)|, V(s) = mean reward of the leaves L(s) below s.

    (Hou et al. 2025, "TreeRL: LLM RL with on-policy tree search", global and local advantage. The square
    root lessens the weight of nodes that many leaves share.) The caller gives V(root): a prompt has other bases too.

    Args:
      rewards, mask: of the explored rollouts, row 0 those of S_0. A state without rollouts does not exist.
      final_reward: the base response's own.
      root_value: mean reward of all leaves of the prompt.

    Returns:
      advantages of the rollouts, 0 outside the mask; and of the base's blocks, numbered as by `block_index`: the states
      that exist cut it into one block more, the rest have 0.
    """
    mask = jnp.asarray(mask, bool)
    final, root = (jnp.asarray(x, jnp.float32)[..., None] for x in (final_reward, root_value))
    # Counted from the base's reward, so that a tree of equal rewards has advantage exactly 0.
    rewards = jnp.where(mask, jnp.asarray(rewards, jnp.float32) - final[..., None], 0.0)
    root = root - final
    later = mask[..., 1:, :]
    exists = later.any(axis=-1)
    counts = 1.0 + _from_here_on(later.sum(axis=-1).astype(jnp.float32))
    values = _from_here_on(rewards[..., 1:, :].sum(axis=-1)) / counts  # of the block that ends in S_1..S_K
    parents = jnp.concatenate([root, values], axis=-1)
    advantages = jnp.where(mask, (rewards - root[..., None]) + (rewards - parents[..., None]), 0.0)

    order = jnp.argsort(~exists, axis=-1, stable=True)
    end = jnp.zeros_like(root)
    values, counts = (jnp.take_along_axis(x, order, axis=-1) for x in (values, counts))
    last = exists.sum(axis=-1, keepdims=True)  # after it comes the base's own end, a single leaf
    position = jnp.broadcast_to(jnp.arange(mask.shape[-2]), mask.shape[:-1])
    before_end = position[..., 1:] <= last
    values = jnp.concatenate([jnp.where(before_end, values, 0.0), end], axis=-1)
    counts = jnp.concatenate([jnp.where(before_end, counts, 1.0), end + 1.0], axis=-1)
    before = jnp.concatenate([root, values[..., :-1]], axis=-1)
    credit = ((values - root) + (values - before)) / jnp.sqrt(counts)
    return advantages, jnp.where(position <= last, credit, 0.0)


@checked_shapes
def nested_advantages(
    rewards: Shaped[AnyArray, "*batch J M"],
    mask: Shaped[AnyArray, "*batch J M"],
    final_reward: Number | Shaped[AnyArray, "*batch"],
    root_value: Number | Shaped[AnyArray, "*batch"],
    *,
    weights: tuple[Number, Number, Number] = (1, 1, 1),
) -> tuple[Float[jax.Array, "*batch J M"], Float[jax.Array, "*batch J"]]:
    """A_i = Σ_d w_d (R_i − μ_d(i)) / Σ_d w_d, μ_d(i) = mean reward of the subtree at depth d that leaf i is in.

    (Li et al. 2025, "TreePO", arXiv:2508.17445; equal weights are the released code's ``average``.) Depths: the prompt
    with all its leaves; the base, with the rollouts of S_1..S_K and its own end; the state, with its own rollouts. The
    subtree of S_0 = q is the prompt's at every depth.

    Args:
      rewards, mask, final_reward, root_value: as for `tree_advantages`.
      weights: of prompt, base and state; not negative, not all 0. (1, 0, 0) leaves R_i − V(root).

    Returns:
      advantages of the rollouts, 0 outside the mask; and of the base's blocks, as for `tree_advantages`. A block is a
      part of the base's own leaf, in the subtree of the state where it begins.
    """
    mask = jnp.asarray(mask, bool)
    final, root = (jnp.asarray(x, jnp.float32)[..., None] for x in (final_reward, root_value))
    # Counted from the base's reward, so that a tree of equal rewards has advantage exactly 0.
    rewards = jnp.where(mask, jnp.asarray(rewards, jnp.float32) - final[..., None], 0.0)
    root = root - final
    later = mask[..., 1:, :]
    leaves = 1.0 + later.sum(axis=(-2, -1))[..., None]
    base = rewards[..., 1:, :].sum(axis=(-2, -1))[..., None] / leaves
    of_prompt, of_base, of_state = (weight / sum(weights) for weight in weights)
    states = of_prompt * root + of_base * base + of_state * masked_mean(rewards[..., 1:, :], later, axis=-1)
    advantages = jnp.where(mask, rewards - jnp.concatenate([root, states], axis=-1)[..., None], 0.0)

    exists = later.any(axis=-1)
    states = jnp.take_along_axis(states, jnp.argsort(~exists, axis=-1, stable=True), axis=-1)
    credit = -jnp.concatenate([(of_prompt + of_state) * root + of_base * base, states], axis=-1)
    position = jnp.broadcast_to(jnp.arange(mask.shape[-2]), credit.shape)
    return advantages, jnp.where(position <= exists.sum(axis=-1, keepdims=True), credit, 0.0)


def _from_here_on(x: jax.Array) -> jax.Array:
    """Σ_{i≥j} x_i over the last axis."""
    return jnp.flip(jnp.cumsum(jnp.flip(x, axis=-1), axis=-1), axis=-1)
