"""Policy losses per token, and their aggregation to one number.

A loss does not divide by its count: `aggregate` returns a sum and a count, and the caller adds both over micro-batches,
devices and accumulation steps. It divides once, so the result does not depend on sharding, micro-batching or packing.

Dimension key: T tokens of a response (one row = one sequence); `batch` is any leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray
from fr3e_jax.objectives.divergence import bounded_log_ratio
from fr3e_jax.objectives.reductions import masked_sum


def clipped_surrogate(
    policy_logprobs: Float[AnyArray, "*batch T"],
    old_logprobs: Float[AnyArray, "*batch T"],
    advantages: Float[AnyArray, "*batch T"],
    mask: Shaped[AnyArray, "*batch T"],
    *,
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float = 0.0,
) -> tuple[Float[jax.Array, "*batch T"], dict[str, jax.Array]]:
    """ℓ_t = −min(ρ_t Â_t, clip(ρ_t, 1 − ε_low, 1 + ε_high) Â_t),  ρ_t = exp(log π − log π_old). (FR3E, eq. 2.)

    With ``dual_clip`` c > 1, where Â_t < 0: ℓ_t ← min(ℓ_t, −c Â_t) (Ye et al. 2020, "Mastering complex control");
    0 is off. The log-ratio is bounded by ±20 (`bounded_log_ratio`), so that ρ stays finite.

    Returns:
      token losses, 0 outside ``mask``; per-token statistics without gradient: ``ratio`` (1 outside the mask) and bools
      ``clipped_low`` (Â < 0, ρ < 1 − ε_low), ``clipped_high`` (Â > 0, ρ > 1 + ε_high), ``clipped_dual`` (Â < 0, ρ > c).
    """
    if dual_clip != 0.0 and dual_clip <= 1.0:
        raise ValueError(
            f"dual_clip={dual_clip} would clip unchanged policies; expected a number above 1, or 0 for off"
        )
    mask = jnp.asarray(mask, bool)
    advantages = jnp.where(mask, jnp.asarray(advantages, jnp.float32), 0.0)
    ratio = jnp.exp(jnp.where(mask, bounded_log_ratio(policy_logprobs, old_logprobs), 0.0))
    clipped_ratio = jnp.clip(ratio, 1.0 - epsilon_low, 1.0 + epsilon_high)
    losses = jnp.maximum(-ratio * advantages, -clipped_ratio * advantages)
    if dual_clip:
        losses = jnp.where(advantages < 0, jnp.minimum(losses, -dual_clip * advantages), losses)

    ratio = jax.lax.stop_gradient(ratio)
    statistics = {
        "ratio": ratio,
        "clipped_low": (advantages < 0) & (ratio < 1.0 - epsilon_low),
        "clipped_high": (advantages > 0) & (ratio > 1.0 + epsilon_high),
        "clipped_dual": (advantages < 0) & (ratio > (dual_clip or jnp.inf)),
    }
    return losses, statistics


def truncated_importance_weight(
    trainer_logprobs: Float[AnyArray, "*shape"], sampler_logprobs: Float[AnyArray, "*shape"], cap: float
) -> Float[jax.Array, "*shape"]:
    """w_t = stop_gradient(min(π_trainer / π_sampler, cap)): multiplies ℓ_t where sampler and trainer differ.

    (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".) ``cap`` > 0, usually 2.
    """
    if cap <= 0:
        raise ValueError(f"cap={cap} would remove every token; expected a positive number (usually 2)")
    ratio = jnp.exp(bounded_log_ratio(trainer_logprobs, sampler_logprobs))
    return jax.lax.stop_gradient(jnp.minimum(ratio, cap))


def entropy_bonus(
    entropies: Float[AnyArray, "*batch T"], mask: Shaped[AnyArray, "*batch T"], *, coefficient: float
) -> Float[jax.Array, "*batch T"]:
    """ℓ_t = −β H_t, to be added to the policy's token losses. (The entropy regularisation of RwE, Table 1.)"""
    return -coefficient * jnp.where(jnp.asarray(mask, bool), jnp.asarray(entropies, jnp.float32), 0.0)


def aggregation_weights(mask: Shaped[AnyArray, "*batch T"], mode: str) -> Float[jax.Array, "*batch T"]:
    """Weight of each token in `aggregate`'s sum: 1, or 1/|o_i| for ``seq_mean_token_mean``; 0 outside the mask.

    Layouts with several sequences in a row compute these first and pack them along with the tokens.
    """
    weights = jnp.asarray(mask, bool).astype(jnp.float32)
    if mode == "seq_mean_token_mean":
        return weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1.0)
    return weights


def aggregation_count(
    mask: Shaped[AnyArray, "*batch T"], mode: str, *, norm_length: int | None = None
) -> Float[jax.Array, ""]:
    """The denominator of ``mode``, a function of the mask alone, so that it is known before any loss is.

    Σ_i |o_i| for ``token_mean``, else the number of sequences with at least one token; times ``norm_length`` for
    ``token_sum_norm``.
    """
    mask = jnp.asarray(mask, bool)
    sequences = jnp.sum(mask.any(axis=-1), dtype=jnp.float32)
    if mode == "token_mean":
        return jnp.sum(mask, dtype=jnp.float32)
    if mode in ("seq_mean_token_mean", "seq_mean_token_sum"):
        return sequences
    if mode == "token_sum_norm":
        if norm_length is None:
            raise ValueError("token_sum_norm divides by a fixed length: pass norm_length= (the response cap)")
        return sequences * norm_length
    raise ValueError(
        f"unknown aggregation {mode!r}; expected token_mean, seq_mean_token_mean, seq_mean_token_sum, token_sum_norm"
    )


def aggregate(
    token_losses: Float[AnyArray, "*batch T"],
    mask: Shaped[AnyArray, "*batch T"],
    mode: str,
    *,
    norm_length: int | None = None,
) -> tuple[Float[jax.Array, ""], Float[jax.Array, ""]]:
    """(sum, count) with L = Σ sum / Σ count over all micro-batches and shards; a row is a sequence.

    - ``token_mean``: Σ_i Σ_t ℓ / Σ_i |o_i| (FR3E, eq. 2; DAPO);
    - ``seq_mean_token_mean``: mean_i of mean_t ℓ (GRPO; EGSW, eq. 5);
    - ``seq_mean_token_sum``: mean_i of Σ_t ℓ;
    - ``token_sum_norm``: mean_i of Σ_t ℓ / ``norm_length`` (Dr. GRPO).

    Sequences with an empty mask do not count. Over nothing at all both are 0: guard the division there.
    """
    count = aggregation_count(mask, mode, norm_length=norm_length)
    return masked_sum(jnp.asarray(token_losses, jnp.float32) * aggregation_weights(mask, mode), mask), count
