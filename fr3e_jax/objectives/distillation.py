"""A policy that learns from a teacher on its own samples (on-policy distillation).

Agarwal et al. 2024, "On-policy distillation of language models" (GKD, arXiv:2306.13649); Lu 2025, "On-Policy
Distillation" (Thinking Machines Lab).

Dimension key: V vocabulary; `shape` and `batch` are any number of axes.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes
from fr3e_jax.objectives.divergence import bounded_log_ratio

_LEAST = -80.0  # of a log-prob: its exponential is as good as 0, and 0 times it is no NaN


@checked_shapes
def teacher_advantages(
    policy_logprobs: Float[AnyArray, "*shape"], teacher_logprobs: Float[AnyArray, "*shape"]
) -> Float[jax.Array, "*shape"]:
    """A_t = log π_T(o_t) − log π(o_t), bounded by ±20: a sample of −KL(π ‖ π_T) at each token. (Lu 2025.)"""
    return bounded_log_ratio(teacher_logprobs, policy_logprobs)


@checked_shapes
def distillation_divergence(
    policy_logits: Float[AnyArray, "*batch V"], teacher_logits: Float[AnyArray, "*batch V"], *, beta: float
) -> Float[jax.Array, "*batch"]:
    """D_t = β KL(π_T ‖ m) + (1 − β) KL(π ‖ m),  m = β π_T + (1 − β) π, over the vocabulary. (GKD, eq. 1.)

    Its limits are β = 1: KL(π ‖ π_T), the reverse divergence, and β = 0: KL(π_T ‖ π), the forward one (both unscaled,
    as in TRL). Log-ratios of single tokens are bounded by ±20.
    """
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta={beta}; expected 0 (forward) to 1 (reverse)")
    policy, teacher = (
        jnp.maximum(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)), _LEAST)
        for logits in (policy_logits, teacher_logits)
    )
    if beta == 1.0:
        return _divergence(policy, teacher)
    if beta == 0.0:
        return _divergence(teacher, policy)
    mixture = jnp.logaddexp(math.log(beta) + teacher, math.log1p(-beta) + policy)
    return beta * _divergence(teacher, mixture) + (1.0 - beta) * _divergence(policy, mixture)


def _divergence(logprobs: jax.Array, other: jax.Array) -> jax.Array:
    """Σ p log(p / q) − p + q: KL of distributions ``[..., V]``, no term of which rounding makes negative.

    −p + q sums to 0, and so does its gradient; with it both are exactly 0 where p is q.
    """
    p, q = jnp.exp(logprobs), jnp.exp(other)
    return jnp.sum(p * bounded_log_ratio(logprobs, other) + (q - p), axis=-1)
