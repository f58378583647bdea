"""Policy losses per token, and their aggregation to one number.

A loss is a sum over tokens, each divided by its sequence's divisor (`token_divisors`), over one denominator of the
whole mini-batch (`aggregation_denominator`). The token counts alone decide both, so the caller sums over micro-batches,
devices and accumulation steps and divides once. The result depends neither on sharding nor on packing.

`fr3e_jax.programs.train_programs` chooses among the losses.

Dimension key: T tokens of a response (one row = one sequence); `batch` is any leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes
from fr3e_jax.objectives.divergence import bounded_log_ratio


@checked_shapes
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


@checked_shapes
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


@checked_shapes
def entropy_bonus(
    entropies: Float[AnyArray, "*batch T"], mask: Shaped[AnyArray, "*batch T"], *, coefficient: float
) -> Float[jax.Array, "*batch T"]:
    """ℓ_t = −β H_t, to be added to the policy's token losses.

    (The entropy regularisation of Cheng et al. 2025, Table 1.)
    """
    return -coefficient * jnp.where(jnp.asarray(mask, bool), jnp.asarray(entropies, jnp.float32), 0.0)


AGGREGATIONS = {
    "token_mean": "Σ_i Σ_t ℓ / Σ_i |o_i|: every token weighs the same (FR3E, eq. 2; DAPO)",
    "seq_mean_token_mean": "mean_i of mean_t ℓ: every sequence weighs the same (GRPO; Vanlioglu 2025, eq. 5)",
    "seq_mean_token_sum": "mean_i of Σ_t ℓ",
    "token_sum_norm": "mean_i of Σ_t ℓ / norm_length, a fixed length (Dr. GRPO)",
}
"""The ways in which the losses of tokens become one number; sequences without a token do not count."""


@checked_shapes
def token_divisors(counts: Shaped[AnyArray, "*batch"], mode: str) -> AnyArray:
    """The divisors of the token losses of sequences of ``counts`` tokens, applied before the sum.

    |o_i| (1 for an empty sequence) for ``seq_mean_token_mean``, else 1. NumPy arrays give NumPy arrays.
    """
    return counts + (counts == 0) if mode == "seq_mean_token_mean" else counts * 0 + 1


@checked_shapes
def aggregation_denominator(
    counts: Shaped[AnyArray, "*batch"], mode: str, *, norm_length: int | None = None
) -> Shaped[AnyArray, ""]:
    """The denominator of ``mode``, a function of the token counts of all sequences alone: known before any loss is.

    Σ_i |o_i| for ``token_mean``, else the number of sequences with at least one token; times ``norm_length`` for
    ``token_sum_norm``. 0 where there is no token at all.
    """
    if mode not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {mode!r}; expected {', '.join(AGGREGATIONS)}")
    if mode == "token_mean":
        return counts.sum()
    sequences = (counts > 0).sum()
    if mode != "token_sum_norm":
        return sequences
    if norm_length is None:
        raise ValueError("token_sum_norm divides by a fixed length: pass norm_length= (the response cap)")
    return sequences * norm_length
