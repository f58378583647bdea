"""Selection of the tokens that carry gradient: by entropy, by covariance, by length, by mismatch.

Fractions are of the tokens of the *whole* batch: call these on all of its tokens, before it is cut into micro-batches.

Dimension key: T tokens of a response; `shape` is any number of axes, `batch` any leading ones.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes
from fr3e_jax.objectives.divergence import bounded_log_ratio
from fr3e_jax.objectives.reductions import masked_mean


@checked_shapes
def largest_share(
    scores: Float[AnyArray, "*shape"], candidates: Shaped[AnyArray, "*shape"], count: Shaped[AnyArray, ""]
) -> Bool[jax.Array, "*shape"]:
    """The ``count`` candidates with the largest scores, fewer if there are fewer; of equal ones the first."""
    flat = jnp.where(jnp.asarray(candidates, bool), jnp.asarray(scores, jnp.float32), -jnp.inf).reshape(-1)
    order = jnp.argsort(-flat, stable=True)
    rank = jnp.zeros(flat.shape, jnp.int32).at[order].set(jnp.arange(flat.size, dtype=jnp.int32))
    return (rank < count).reshape(jnp.shape(scores)) & jnp.asarray(candidates, bool)


@checked_shapes
def forking_tokens(
    entropies: Float[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"], *, share: float
) -> Bool[jax.Array, "*shape"]:
    """The ``share`` of the batch's tokens with the highest entropy, rounded up.

    (Wang et al. 2025; Deng et al. 2025, Table 2.)
    """
    _check_share(share)
    # Rounded up short of float32's error: 0.2 of 5 tokens is 1 and not 2.
    return largest_share(entropies, mask, jnp.maximum(jnp.ceil(share * jnp.sum(jnp.asarray(mask, bool)) - 1e-4), 1))


@checked_shapes
def token_covariances(
    logprobs: Float[AnyArray, "*shape"], advantages: Float[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"]
) -> Float[jax.Array, "*shape"]:
    """cov_t = (log π_t − mean) (A_t − mean), means over the mask; no gradient. (Cui et al. 2025.)"""
    deviations = (jnp.asarray(x, jnp.float32) - masked_mean(x, mask) for x in (logprobs, advantages))
    return jax.lax.stop_gradient(jnp.where(jnp.asarray(mask, bool), jnp.prod(jnp.stack([*deviations]), axis=0), 0.0))


@checked_shapes
def clip_cov_tokens(
    covariances: Float[AnyArray, "*shape"],
    mask: Shaped[AnyArray, "*shape"],
    clipped: Shaped[AnyArray, "*shape"],
    uniforms: Float[AnyArray, "*shape"],
    *,
    share: float,
    low: float,
    high: float,
) -> Bool[jax.Array, "*shape"]:
    """Clip-Cov: the tokens that leave the gradient. (Cui et al. 2025; Deng et al. 2025, Table 2.)

    ``share`` of the batch's tokens, at least one, drawn among those with covariance in (low, high) that are not
    clipped already. ``uniforms`` are the random numbers of the draw.
    """
    _check_share(share)
    tokens = jnp.sum(jnp.asarray(mask, bool))
    candidates = jnp.asarray(mask, bool) & ~jnp.asarray(clipped, bool) & (covariances > low) & (covariances < high)
    return largest_share(uniforms, candidates, jnp.maximum(jnp.floor(share * tokens), 1))


@checked_shapes
def kl_cov_tokens(
    covariances: Float[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"], *, share: float
) -> Bool[jax.Array, "*shape"]:
    """KL-Cov: the ``share`` of the batch's tokens with the largest covariance, at least one, which pay a KL penalty."""
    _check_share(share)
    tokens = jnp.sum(jnp.asarray(mask, bool))
    return largest_share(covariances, mask, jnp.maximum(jnp.floor(share * tokens), 1))


@checked_shapes
def kl_cov_losses(
    logprobs: Float[AnyArray, "*shape"],
    old_logprobs: Float[AnyArray, "*shape"],
    advantages: Float[AnyArray, "*shape"],
    mask: Shaped[AnyArray, "*shape"],
    penalised: Shaped[AnyArray, "*shape"],
    *,
    coefficient: float,
) -> Float[jax.Array, "*shape"]:
    """ℓ_t = −ρ_t Â_t, unclipped, plus coefficient · |log π − log π_old| where ``penalised``. (Cui et al. 2025.)"""
    log_ratio = jnp.where(jnp.asarray(mask, bool), bounded_log_ratio(logprobs, old_logprobs), 0.0)
    losses = -jnp.exp(log_ratio) * jnp.where(jnp.asarray(mask, bool), jnp.asarray(advantages, jnp.float32), 0.0)
    return losses + coefficient * jnp.where(jnp.asarray(penalised, bool), jnp.abs(log_ratio), 0.0)


@checked_shapes
def soft_overlong_penalty(
    lengths: Shaped[AnyArray, "*batch"], *, max_length: int, margin: int
) -> Float[jax.Array, "*batch"]:
    """0 up to max − margin tokens, falling to −1 from ``max_length`` on: added to the reward. (DAPO, eq. 13.)"""
    if not 0 < margin <= max_length:
        raise ValueError(f"margin={margin} with max_length={max_length}; expected 1 to max_length tokens")
    over = jnp.asarray(lengths, jnp.float32) - (max_length - margin)
    return -jnp.clip(over / margin, 0.0, 1.0)


@checked_shapes
def matching_tokens(
    trainer_logprobs: Float[AnyArray, "*shape"],
    sampler_logprobs: Float[AnyArray, "*shape"],
    mask: Shaped[AnyArray, "*shape"],
    *,
    low: float,
    high: float,
) -> Bool[jax.Array, "*shape"]:
    """The mask's tokens with π_trainer / π_sampler in [low, high]; other tokens came from a different policy."""
    ratio = jnp.exp(bounded_log_ratio(trainer_logprobs, sampler_logprobs))
    return jnp.asarray(mask, bool) & (ratio >= low) & (ratio <= high)


def _check_share(share: float) -> None:
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share={share} is no share of tokens; expected a fraction in (0, 1], not a percentage")
