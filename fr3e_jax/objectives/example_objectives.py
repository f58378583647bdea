"""Examples of losses and an estimator of one's own: ``loss.function=fr3e_jax.objectives.example_objectives:cispo``.

Parameters name the fields that a function reads (`fr3e_jax.objectives.user_objectives`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def cispo(
    logprobs: jax.Array, old_logprobs: jax.Array, advantages: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """ℓ_t = −sg(min(ρ_t, 1 + ε)) Â_t log π,  ε = 4: the weight is clipped and no token loses its gradient.

    (MiniMax-M1, Chen et al. 2025, arXiv:2506.13585, eq. 4-5.)
    """
    ratio = jax.lax.stop_gradient(jnp.exp(logprobs - old_logprobs))
    weight = jnp.minimum(ratio, 5.0)
    return -weight * advantages * logprobs, {"capped": (ratio > weight).astype(jnp.float32)}


def masked_sequences(
    logprobs: jax.Array, old_logprobs: jax.Array, advantages: jax.Array, sequence_sampler_gaps: jax.Array
) -> jax.Array:
    """−ρ_t Â_t, and 0 in responses whose geometric mean of π_old / π_sampler lies outside of [1/1.01, 1.01].

    (Sequence-level masked importance sampling, Liu et al. 2025, "When speed kills stability".)
    """
    trusted = jnp.abs(sequence_sampler_gaps) <= jnp.log(1.01)
    return jnp.where(trusted, -jnp.exp(logprobs - old_logprobs) * advantages, 0.0)


def shortest_half(rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """z-scores within the shorter half of the rollouts; the longer half does not train.

    (GFPO, Shrivastava et al. 2025, arXiv:2508.09726, with length as the metric.)
    """
    advantages = np.full(len(rewards), np.nan)
    short = np.argsort(lengths, kind="stable")[: -(-len(rewards) // 2)]
    advantages[short] = (rewards[short] - rewards[short].mean()) / (rewards[short].std() + 1e-6)
    return advantages
