"""ARPO's rule: branch after a tool's answer if it has made the policy less certain.

Dong et al. 2025, Agentic Reinforced Policy Optimization (arXiv:2507.19849), section 3.1; constants of the released code
(w = 0.2, p = 0.5, 20 tokens). Deviation: H is the entropy of the full vocabulary, which the sampler computes anyway;
the released code sums p log p over the ten largest log-probs, as its inference server returns no more.

Dimension key: T tokens of a response; `shape` is any number of axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes
from fr3e_jax.objectives.reductions import masked_sum


@checked_shapes
def entropy_from(
    entropies: Float[AnyArray, " T"],
    drawn: Shaped[AnyArray, " T"],
    start: int | Int[AnyArray, ""],
    *,
    tokens: int,
    vocabulary: int,
) -> Float[jax.Array, ""]:
    """H = Σ H_t / ln V over the first ``tokens`` tokens from position ``start`` on that the policy drew; 0 for none.

    A sum, as in the released code: a response that ends soon after an answer has little entropy there.
    """
    if tokens < 1 or vocabulary < 2:
        raise ValueError(f"tokens={tokens}, vocabulary={vocabulary}; expected at least 1 and 2")
    later = jnp.asarray(drawn, bool) & (jnp.arange(entropies.shape[0]) >= start)
    return masked_sum(entropies, later & (jnp.cumsum(later) <= tokens)) / jnp.log(jnp.float32(vocabulary))


@checked_shapes
def branches_after_answer(
    uniforms: Float[AnyArray, "*shape"],
    entropy_changes: Float[AnyArray, "*shape"],
    *,
    weight: float,
    probability: float,
) -> Bool[jax.Array, "*shape"]:
    """Whether to branch: clip(u − w ΔH, 0, 1) ≤ p, u uniform in [0, 1), ΔH = H after the answer − H at the start.

    So with P = clip(p + w ΔH, 0, 1), ARPO's eq. 4, where that is above 0; at p = 0 a clipped 0 still branches.
    """
    shifted = jnp.asarray(uniforms, jnp.float32) - weight * jnp.asarray(entropy_changes, jnp.float32)
    return jnp.clip(shifted, 0.0, 1.0) <= probability
