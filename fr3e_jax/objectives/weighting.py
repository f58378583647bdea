"""Entropy-guided sequence weighting: weights of the rollouts of a batch in the objective. (Vanlioglu 2025, EGSW.)

Dimension key: N sequences of a batch, T tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes
from fr3e_jax.objectives.reductions import masked_mean, masked_sum


@checked_shapes
def entropy_guided_weights(
    advantages: Float[AnyArray, "N T"],
    entropies: Float[AnyArray, "N T"],
    mask: Shaped[AnyArray, "N T"],
    *,
    alpha: float,
    temperature: float,
    level: str,
    steps: Int[AnyArray, "N T"] | None = None,
) -> Float[jax.Array, "N T"]:
    """w = softmax_i((A_i + α H_i) / P), of token losses; no gradient; 0 outside the mask. (Vanlioglu 2025, eq. 6-10.)

    ``level="step"``: over the sequences with a token at step t, from A_{i,t} and H_{i,t}. ``"trajectory"``: over all
    with a token at all, from the mean of A_{i,t} and the sum of H_{i,t}. Weights add up to 1 over N sequences, so they
    scale the gradient by about 1/N.
    α = 0.3, P = 1 (base model); α = 0.8, P = 1.8 (instruct model), both with normalised entropy (section 5).

    ``steps``: a number in [0, N T) for each token; tokens of equal numbers are at the same step of their responses.
    None: column t is step t.
    """
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} divides the scores; expected a positive number (paper: 1 or 1.8)")
    mask = jnp.asarray(mask, bool)
    advantages, entropies = (jnp.asarray(x, jnp.float32) for x in (advantages, entropies))
    if level == "trajectory":
        advantages = masked_mean(advantages, mask, axis=-1, keepdims=True)
        entropies = masked_sum(entropies, mask, axis=-1, keepdims=True)
        present = mask.any(axis=-1, keepdims=True)
    elif level == "step":
        present = mask
    else:
        raise ValueError(f"unknown level {level!r}; expected step or trajectory")
    scores = jnp.where(present, (advantages + alpha * entropies) / temperature, -jnp.inf)
    if level == "trajectory" or steps is None:
        total, largest_of = (lambda x: x.sum(axis=0, keepdims=True)), (lambda x: x.max(axis=0, keepdims=True))
    else:
        numbers, size = jnp.asarray(steps).ravel(), mask.size

        def total(x: jax.Array) -> jax.Array:
            return jax.ops.segment_sum(x.ravel(), numbers, size)[numbers].reshape(mask.shape)

        def largest_of(x: jax.Array) -> jax.Array:
            return jax.ops.segment_max(x.ravel(), numbers, size)[numbers].reshape(mask.shape)

    largest = largest_of(scores)
    shares = jnp.exp(scores - jnp.where(jnp.isfinite(largest), largest, 0.0))
    weights = shares / jnp.maximum(total(shares), jnp.finfo(jnp.float32).tiny)
    return jax.lax.stop_gradient(jnp.where(mask, weights, 0.0))
