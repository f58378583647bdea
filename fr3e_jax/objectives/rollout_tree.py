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


def _from_here_on(x: jax.Array) -> jax.Array:
    """Σ_{i≥j} x_i over the last axis."""
    return jnp.flip(jnp.cumsum(jnp.flip(x, axis=-1), axis=-1), axis=-1)
