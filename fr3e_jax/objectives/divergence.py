"""Estimators of KL(π ‖ π_ref) per token, from tokens that π drew. (Schulman 2020, "Approximating KL divergence".)

Dimension key: `shape` is any number of axes; in use, batch axes and T tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes
from fr3e_jax.objectives.reductions import masked_mean

LOG_RATIO_BOUND = 20.0  # exp(20) ≈ 4.9e8: as good as infinite for a ratio, and far from float32's overflow at exp(88)


@checked_shapes
def bounded_log_ratio(
    logprobs: Float[AnyArray, "*shape"], other_logprobs: Float[AnyArray, "*shape"]
) -> Float[jax.Array, "*shape"]:
    """log π − log π', clipped to [−20, 20] so that its exponential is finite; exact inside, gradient 0 beyond."""
    difference = jnp.asarray(logprobs, jnp.float32) - jnp.asarray(other_logprobs, jnp.float32)
    return jnp.clip(difference, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


@checked_shapes
def sequence_log_ratios(
    logprobs: Float[AnyArray, "*batch T"], old_logprobs: Float[AnyArray, "*batch T"], mask: Shaped[AnyArray, "*batch T"]
) -> Float[jax.Array, "*batch"]:
    """log s_i = (1/|o_i|) Σ_t (log π − log π_old), each term bounded by ±20; 0 for an empty sequence. (GSPO, eq. 7.)"""
    return masked_mean(bounded_log_ratio(logprobs, old_logprobs), mask, axis=-1)


@checked_shapes
def kl_k1(
    policy_logprobs: Float[AnyArray, "*shape"], ref_logprobs: Float[AnyArray, "*shape"]
) -> Float[jax.Array, "*shape"]:
    """k1 = log π − log π_ref: unbiased, of either sign; for a reward. As a loss its mean gradient is E[∇ log π] = 0."""
    return jnp.asarray(policy_logprobs, jnp.float32) - jnp.asarray(ref_logprobs, jnp.float32)


@checked_shapes
def kl_k2(
    policy_logprobs: Float[AnyArray, "*shape"], ref_logprobs: Float[AnyArray, "*shape"]
) -> Float[jax.Array, "*shape"]:
    """k2 = ½ (log π − log π_ref)²: biased, never negative; its gradient is an unbiased gradient of the KL."""
    return 0.5 * kl_k1(policy_logprobs, ref_logprobs) ** 2


@checked_shapes
def kl_k3(
    policy_logprobs: Float[AnyArray, "*shape"], ref_logprobs: Float[AnyArray, "*shape"]
) -> Float[jax.Array, "*shape"]:
    """k3 = π_ref/π − log(π_ref/π) − 1: unbiased, never negative. The log-ratio is bounded by ±20.

    (Vanlioglu 2025, eq. 4.) As a loss its mean gradient is that of KL(π_ref ‖ π); near π = π_ref the two divergences
    agree.
    """
    log_ratio = bounded_log_ratio(ref_logprobs, policy_logprobs)
    return jnp.expm1(log_ratio) - log_ratio


KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
