"""Statistics of next-token distributions: entropy, branching factor, log-probs, size of the update they ask for.

All from float32 logits through one log-softmax. A logit of −inf is a token that cannot be drawn: it adds 0 to every
sum (0·log 0 = 0) and has gradient 0. Each row needs at least one finite logit.

Dimension key: T tokens, V vocabulary; `batch` is any number of leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes
from fr3e_jax.objectives.reductions import masked_mean, safe_sqrt

_MASS_SLACK = 1e-6  # rounding of a float32 sum: 3 of 6 equal tokens have mass 0.5, though it may read 0.49999997


def _log_softmax(logits: AnyArray) -> jax.Array:
    return jax.nn.log_softmax(jnp.asarray(logits, jnp.float32), axis=-1)


@checked_shapes
def token_entropy(logits: Float[AnyArray, "*batch V"]) -> Float[jax.Array, "*batch"]:
    """H_t = −Σ_v π(v) log π(v), in nats: 0 for a certain token, log V for a uniform distribution.

    FR3E, eq. 5; Vanlioglu 2025, eq. 7; Cheng et al. 2025, eq. 4; Deng et al. 2025, eq. 3.
    """
    logprobs = _log_softmax(logits)
    possible = logprobs > -jnp.inf
    # The inner select keeps −inf out of the gradient of the product, not only out of its value.
    # As a product of vectors: XLA on CPU takes four times as long for a product and its sum in one loop.
    return -jnp.vecdot(jnp.exp(logprobs), jnp.where(possible, logprobs, 0.0), precision="highest")


@checked_shapes
def branching_factor(logits: Float[AnyArray, "*batch V"], mass: float = 0.95) -> Int[jax.Array, "*batch"]:
    """RBF_t = min { |C| : Σ_{v∈C} π(v) ≥ mass }, the size of the nucleus. (Deng et al. 2025, section 2.2.)

    The comparison allows for the rounding of float32 sums (1e-6).
    """
    probs = jnp.flip(jnp.sort(jnp.exp(_log_softmax(logits)), axis=-1), axis=-1)
    mass_before = jnp.cumsum(probs, axis=-1) - probs
    return jnp.sum(mass_before < mass - _MASS_SLACK, axis=-1, dtype=jnp.int32)


@checked_shapes
def token_logprobs(
    logits: Float[AnyArray, "*batch V"], token_ids: Int[AnyArray, "*batch"]
) -> Float[jax.Array, "*batch"]:
    """log π(o_t) = z_{o_t} − log Σ_v exp z_v, in nats; ``token_ids`` in [0, V). −inf for a token of logit −inf."""
    logits = jnp.asarray(logits, jnp.float32)
    largest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    drawn = jnp.take_along_axis(logits, jnp.asarray(token_ids)[..., None], axis=-1) - largest
    # Gather before normalising, so that the log-probs of the whole vocabulary are never stored.
    return (drawn - jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1, keepdims=True)))[..., 0]


@checked_shapes
def log_perplexity(
    logprobs: Float[AnyArray, "*batch T"], mask: Shaped[AnyArray, "*batch T"]
) -> Float[jax.Array, "*batch"]:
    """ln PPL(o) = −(1/T) Σ_t log π(o_t | …) over the masked tokens; 0 for an empty response.

    (Deng et al. 2025, section 3.2.3.)
    """
    return -masked_mean(logprobs, mask, axis=-1)


@checked_shapes
def update_magnitude(
    logits: Float[AnyArray, "*batch V"], token_ids: Int[AnyArray, "*batch"], hidden_norm: Float[AnyArray, "*batch"]
) -> Float[jax.Array, "*batch"]:
    """G_t / |α_t| = ‖(e(o_t) − π) hᵀ‖_F = ‖e(o_t) − π‖₂ · ‖h‖₂. (Deng et al. 2025, eq. 4 and appendix A.1.)

    The matrix has rank one, so its norm is the product of two vector norms. ``hidden_norm`` is ‖h‖₂ of the last hidden
    state. 1 − π(o_t) is summed from the other tokens, so that nearly certain tokens lose no precision.
    """
    drawn = jax.nn.one_hot(token_ids, logits.shape[-1], dtype=bool)
    others = jnp.where(drawn, 0.0, jnp.exp(_log_softmax(logits)))
    squares = jnp.sum(others, axis=-1) ** 2 + jnp.sum(others**2, axis=-1)
    return safe_sqrt(squares) * jnp.asarray(hidden_norm, jnp.float32)
