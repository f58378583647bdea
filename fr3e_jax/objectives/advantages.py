"""Advantages of groups: rewards against the baseline of the rollouts from the same state.

A group is the set of rollouts that share a baseline: for GRPO and RLOO the base rollouts of a prompt, for FR3E the
branches of a state. A group of one, and a group of equal rewards, has advantage exactly 0; so have entries outside
the mask.

Dimension key: J states S_1..S_J, M rollouts of a group; `batch` is any leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, Number, checked_shapes
from fr3e_jax.objectives.reductions import masked_mean, masked_std, masked_sum
from fr3e_jax.objectives.shaping import pass_at_k_advantages
from fr3e_jax.objectives.values import state_values, trajectory_modulation

LEAST_DEVIATION = 1e-6  # advantages that spread less are taken as equal


@checked_shapes
def ranged_rewards(rewards: Shaped[AnyArray, "*batch"], reward_range: str) -> AnyArray:
    """Rewards of [0, 1] in the range that estimators read: unchanged, or 2 r − 1 (``minus_one_one``).

    The range ±1 is that of Cheng et al. 2025.
    """
    if reward_range == "zero_one":
        return rewards
    if reward_range == "minus_one_one":
        return 2.0 * rewards - 1.0
    raise ValueError(f"unknown reward range {reward_range!r}; expected zero_one, minus_one_one")


@checked_shapes
def graded_values(values: Shaped[AnyArray, "*batch"], reward_range: str) -> AnyArray:
    """The inverse of `ranged_rewards`: values on the scale of the rewards as graded."""
    return values if reward_range == "zero_one" else (values + 1.0) / 2.0


@checked_shapes
def mean_advantages(
    rewards: Shaped[AnyArray, "*batch M"], mask: Shaped[AnyArray, "*batch M"]
) -> Float[jax.Array, "*batch M"]:
    """A_m = r_m − mean(r): no division by a deviation. (FR3E: r_{j,m} − V(S_j), appendix C; Dr. GRPO.)"""
    rewards, mask = jnp.asarray(rewards, jnp.float32), jnp.asarray(mask, bool)
    # Counting from the largest reward makes equal rewards cancel exactly; (3 · 0.9) / 3 − 0.9 is not 0.
    pivot = jnp.max(rewards, axis=-1, keepdims=True, where=mask, initial=-jnp.inf)
    shifted = jnp.where(mask, rewards - jax.lax.stop_gradient(pivot), 0.0)
    return jnp.where(mask, shifted - masked_mean(shifted, mask, axis=-1, keepdims=True), 0.0)


@checked_shapes
def grpo_advantages(
    rewards: Shaped[AnyArray, "*batch M"],
    mask: Shaped[AnyArray, "*batch M"],
    *,
    unbiased_std: bool = False,
    epsilon: float = 1e-6,
) -> Float[jax.Array, "*batch M"]:
    """A_m = (r_m − mean(r)) / (std(r) + ε), std of the population or (``unbiased_std``) with n − 1.

    (Vanlioglu 2025, eq. 3.)
    """
    advantages = mean_advantages(rewards, mask)
    return advantages / (masked_std(advantages, mask, -1, unbiased_std)[..., None] + epsilon)


@checked_shapes
def rloo_advantages(
    rewards: Shaped[AnyArray, "*batch M"], mask: Shaped[AnyArray, "*batch M"]
) -> Float[jax.Array, "*batch M"]:
    """A_m = r_m − (1/(n−1)) Σ_{i≠m} r_i = n/(n−1) · (r_m − mean(r)). (Ahmadian et al. 2024, "Back to Basics".)"""
    count = masked_sum(jnp.ones_like(mask), mask, axis=-1, keepdims=True)
    return mean_advantages(rewards, mask) * count / jnp.maximum(count - 1.0, 1.0)


@checked_shapes
def maxrl_advantages(
    rewards: Shaped[AnyArray, "*batch M"], mask: Shaped[AnyArray, "*batch M"]
) -> Float[jax.Array, "*batch M"]:
    """A_m = (r_m − mean(r)) / mean(r), for rewards of [0, 1]; 0 where all are 0.

    With rewards 0 and 1 and n rollouts, the mean of A_m ∇log π estimates Σ_{k<n} ∇pass@k / k without bias, the first
    n − 1 terms of the gradient of log pass@1. So a success counts the more, the rarer it is. (Tajwar et al. 2026,
    MaxRL, arXiv:2602.02710: its estimator with the control variate.)
    """
    mean = masked_mean(jnp.asarray(rewards, jnp.float32), mask, axis=-1, keepdims=True)
    return jnp.where(mean > 0, mean_advantages(rewards, mask) / jnp.where(mean > 0, mean, 1.0), 0.0)


@checked_shapes
def group_advantages(
    rewards: Shaped[AnyArray, "*batch M"],
    mask: Shaped[AnyArray, "*batch M"],
    *,
    estimator: str,
    unbiased_std: bool = False,
    k: int = 4,
    right: Shaped[AnyArray, "*batch M"] | None = None,
) -> Float[jax.Array, "*batch M"]:
    """The advantage named by ``estimator``.

    ``mean``, ``grpo`` (the only reader of ``unbiased_std``), ``rloo``, ``maxrl``; ``reward``: the reward itself, with
    no baseline (REINFORCE); ``pass_at_k`` (`pass_at_k_advantages` of subsets of ``k``). The last one reads the verdicts
    ``right`` and no reward: a graded reward, or one less a penalty, does not tell what is right.
    """
    if estimator == "mean":
        return mean_advantages(rewards, mask)
    if estimator == "grpo":
        return grpo_advantages(rewards, mask, unbiased_std=unbiased_std)
    if estimator == "rloo":
        return rloo_advantages(rewards, mask)
    if estimator == "maxrl":
        return maxrl_advantages(rewards, mask)
    if estimator == "pass_at_k":
        if right is None:
            raise ValueError("estimator 'pass_at_k' asks which responses are right: pass right=, got None")
        return pass_at_k_advantages(right, mask, k=k)
    if estimator == "reward":
        return jnp.where(jnp.asarray(mask, bool), jnp.asarray(rewards, jnp.float32), 0.0)
    raise ValueError(f"unknown advantage estimator {estimator!r}; expected grpo, rloo, mean, maxrl, pass_at_k, reward")


def whitening(tokens: np.ndarray) -> tuple[float, float]:
    """(mean, 1 / std) of the advantages of all tokens that train, ``[N]``: A ← (A − mean) / std. (REINFORCE++; PPO.)

    In float64 on the host, since a full batch has millions of tokens. Equal advantages, or none, have scale 0.
    """
    tokens = tokens.astype(np.float64)
    mean, deviation = (tokens.mean(), tokens.std()) if tokens.size else (0.0, 0.0)
    return mean, 1.0 / deviation if deviation > LEAST_DEVIATION else 0.0


@checked_shapes
def fr3e_advantages(
    rewards: Shaped[AnyArray, "*batch J M"],
    mask: Shaped[AnyArray, "*batch J M"],
    initial_value: Number | Shaped[AnyArray, "*batch"],
    valid: Shaped[AnyArray, "*batch J"],
    *,
    estimator: str = "mean",
    modulation: str = "exp",
    fresh: bool = False,
    unbiased_std: bool = False,
) -> tuple[Float[jax.Array, "*batch J M"], Float[jax.Array, "*batch J"], Float[jax.Array, "*batch J"]]:
    """A'_{j,m} = α_j (r_{j,m} − V(S_j)) of the states S_1..S_J of each base trajectory. (FR3E, eq. 13-15.)

    Call it on whole trajectories, *before* groups without signal are filtered. ``initial_value`` is V(S_0). A
    state without rollouts counts as not valid. ``fresh``: S_0 trains as well; ``modulation="sharpen"`` alone reads it.

    Returns:
      advantages A', values V (0 if not valid), factors α (1 if not valid).
    """
    mask = jnp.asarray(mask, bool) & jnp.asarray(valid, bool)[..., None]
    valid = mask.any(axis=-1)
    values = state_values(rewards, mask)
    alphas = trajectory_modulation(values, initial_value, valid, variant=modulation, fresh=fresh)[..., 1:]
    advantages = group_advantages(rewards, mask, estimator=estimator, unbiased_std=unbiased_std)
    return alphas[..., None] * advantages, values, alphas


@checked_shapes
def block_credit(
    values: Float[AnyArray, "*batch J"],
    initial_value: Number | Shaped[AnyArray, "*batch"],
    final_reward: Number | Shaped[AnyArray, "*batch"],
    valid: Shaped[AnyArray, "*batch J"],
) -> Float[jax.Array, "*batch J+1"]:
    """Â(B_{j+1}) = V(S_{j+1}) − V(S_j) of the base's own blocks, the last one ending at the base's reward.

    Values at the block borders of the base response, as VinePPO takes them at step borders. Blocks are numbered as by
    `block_index`: the valid states cut K + 1 of them, the rest have credit 0. The sum is r − V(S_0).
    """
    values, valid = jnp.asarray(values, jnp.float32), jnp.asarray(valid, bool)
    order = jnp.argsort(~valid, axis=-1, stable=True)
    values, valid = jnp.take_along_axis(values, order, axis=-1), jnp.take_along_axis(valid, order, axis=-1)

    def column(x: AnyArray | float) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(x, values.dtype), values.shape[:-1])[..., None]

    exists = jnp.concatenate([jnp.ones_like(valid[..., :1]), valid], axis=-1)
    starts = jnp.concatenate([column(initial_value), values], axis=-1)
    ends_at_state = jnp.concatenate([valid, jnp.zeros_like(valid[..., :1])], axis=-1)
    ends = jnp.where(ends_at_state, jnp.concatenate([values, column(0.0)], axis=-1), column(final_reward))
    return jnp.where(exists, ends - starts, 0.0)
