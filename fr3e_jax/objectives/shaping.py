"""Advantages shaped by entropy, perplexity, position or the rarity of success.

Each function takes advantages and returns shaped ones; entropies and log-probs get no gradient.

Dimension key: M responses of a group, T tokens of a response; `batch` is any leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes
from fr3e_jax.objectives.reductions import masked_mean, masked_std, safe_sqrt

_RELEASED_BOUNDS = (0.8, 1.2)  # of the perplexity factor in Deng et al.'s released code
_RELEASED_SHARE = 0.5  # of |A|, its cap of the position bonus


@checked_shapes
def entropy_based_advantages(
    advantages: Float[AnyArray, "*batch T"],
    entropies: Float[AnyArray, "*batch T"],
    mask: Shaped[AnyArray, "*batch T"],
    *,
    alpha: float,
    kappa: float,
) -> tuple[Float[jax.Array, "*batch T"], Float[jax.Array, "*batch T"]]:
    """A_t + ψ(H_t), ψ(H_t) = min(α stop_gradient(H_t), |A_t| / κ). (Cheng et al. 2025, eq. 5-7.)

    ``entropies`` are those of the policy that is updated. κ > 1 keeps the sign. α = 0.4 for GRPO, 0.1 for PPO.

    Returns:
      shaped advantages, 0 outside the mask; the ratio ψ/|A| for the metrics, 0 where A is 0.
    """
    if kappa <= 1.0:
        raise ValueError(f"kappa={kappa} lets the bonus turn an advantage's sign; expected a number above 1 (paper: 2)")
    mask = jnp.asarray(mask, bool)
    advantages = jnp.where(mask, jnp.asarray(advantages, jnp.float32), 0.0)
    entropies = jax.lax.stop_gradient(jnp.where(mask, jnp.asarray(entropies, jnp.float32), 0.0))
    size = jnp.abs(advantages)
    bonus = jnp.minimum(alpha * entropies, size / kappa)
    return advantages + bonus, jnp.where(size > 0, bonus / jnp.where(size > 0, size, 1.0), 0.0)


@checked_shapes
def perplexity_weights(
    log_perplexities: Float[AnyArray, "*batch M"],
    mask: Shaped[AnyArray, "*batch M"],
    *,
    variant: str,
) -> Float[jax.Array, "*batch M"]:
    """w = (ln PPL − μ) / σ over the group, σ of the population; 0 where σ = 0 and outside the mask.

    (Deng et al. 2025, eq. 7.)

    ``variant="released"``: μ and σ leave out responses beyond 1.5 inter-quartile ranges, as the released code does.
    """
    mask = jnp.asarray(mask, bool)
    x = jnp.where(mask, jnp.asarray(log_perplexities, jnp.float32), 0.0)
    counted = mask
    if variant == "released":
        low, high = (jnp.nanquantile(jnp.where(mask, x, jnp.nan), q, axis=-1, keepdims=True) for q in (0.25, 0.75))
        reach = 1.5 * (high - low)
        counted = mask & (x >= low - reach) & (x <= high + reach)
    elif variant != "paper":
        raise ValueError(f"unknown variant {variant!r}; expected paper or released")
    spread = masked_std(x, counted, -1)[..., None]
    deviations = x - masked_mean(x, counted, -1, keepdims=True)
    return jnp.where(mask & (spread > 0), deviations / jnp.where(spread > 0, spread, 1.0), 0.0)


@checked_shapes
def perplexity_shaped_advantages(
    advantages: Float[AnyArray, "*batch M T"],
    weights: Float[AnyArray, "*batch M"],
    *,
    alpha: float,
    variant: str,
) -> Float[jax.Array, "*batch M T"]:
    """A (1 − α w): responses of low perplexity weigh more, with α < 0 those of high. (Deng et al. 2025, eq. 11.)

    ``variant="released"``: the factor is clamped to [0.8, 1.2], and with α > 0 it is never applied.
    """
    if variant not in ("paper", "released"):
        raise ValueError(f"unknown variant {variant!r}; expected paper or released")
    advantages = jnp.asarray(advantages, jnp.float32)
    weights = jax.lax.stop_gradient(jnp.asarray(weights, jnp.float32))
    factor = 1.0 - alpha * weights
    if variant == "released":
        factor = jnp.ones_like(factor) if alpha > 0 else jnp.clip(factor, *_RELEASED_BOUNDS)
    return advantages * factor[..., None]


@checked_shapes
def position_shaped_advantages(
    advantages: Float[AnyArray, "*batch T"],
    mask: Shaped[AnyArray, "*batch T"],
    *,
    gamma: float,
    direction: float,
    steepness: float,
    centre: float,
    variant: str,
    relative: Float[AnyArray, "*batch T"] | None = None,
) -> Float[jax.Array, "*batch T"]:
    """A + sign(A) b_t, b_t = γ sigmoid(d m (l_t − n)), l_t = t / |o|: d = 1: later tokens weigh more.

    (Deng et al. 2025, eq. 8 and 12.) ``centre`` is n. The paper prints −0.5, which saturates every sigmoid; the
    released code has 0.5. ``relative`` are the l_t; None: the mask's tokens are counted from its first.
    ``variant="released"``: b_t is at most |A| / 2.
    """
    if variant not in ("paper", "released"):
        raise ValueError(f"unknown variant {variant!r}; expected paper or released")
    mask = jnp.asarray(mask, bool)
    advantages = jnp.where(mask, jnp.asarray(advantages, jnp.float32), 0.0)
    if relative is None:
        relative = (jnp.cumsum(mask, axis=-1) - 1) / jnp.maximum(mask.sum(axis=-1, keepdims=True), 1)
    bonus = gamma * jax.nn.sigmoid(direction * steepness * (relative - centre))
    if variant == "released":
        bonus = jnp.minimum(bonus, _RELEASED_SHARE * jnp.abs(advantages))
    return advantages + jnp.sign(advantages) * bonus


@checked_shapes
def sample_reinforcement(
    advantages: Float[AnyArray, "*shape"], right: Shaped[AnyArray, "*shape"], *, positive: float, negative: float
) -> Float[jax.Array, "*shape"]:
    """Advantages of right responses times ``positive``, those of wrong ones times ``negative``. (Zhu et al. 2025.)

    ("Weighted reinforce".) ``positive=0``: negative sample reinforcement alone; ``negative=0``: positive alone. The
    verdict decides, as in the source: a right answer that pays a penalty may have a negative advantage.
    """
    return jnp.asarray(advantages, jnp.float32) * jnp.where(jnp.asarray(right, bool), positive, negative)


@checked_shapes
def pass_at_k_advantages(
    correct: Shaped[AnyArray, "*batch M"], mask: Shaped[AnyArray, "*batch M"], *, k: int
) -> Float[jax.Array, "*batch M"]:
    """The advantages that maximise pass@k, by counting the subsets of k responses.

    (Chen et al. 2025, Deng et al. 2025, Table 2.)

    R̄ = 1 − C(N₋, k)/C(N, k), σ = √(R̄ (1 − R̄)); right: (1 − R̄)/σ; wrong: (1 − R̄ − C(N₋−1, k−1)/C(N−1, k−1))/σ. 0 where
    σ = 0 and outside the mask. A group smaller than k has only itself as a subset: all are 0.
    """
    if k < 1:
        raise ValueError(f"k={k} draws no response; expected at least 1")
    mask = jnp.asarray(mask, bool)
    right = jnp.asarray(correct, bool) & mask
    count, wrong = mask.sum(axis=-1), (mask & ~right).sum(axis=-1)
    failing = _subset_ratio(wrong, count, k)
    spread = safe_sqrt(failing * (1.0 - failing))[..., None]
    scale = jnp.where(spread > 0, 1.0 / jnp.where(spread > 0, spread, 1.0), 0.0)
    of_wrong = failing - _subset_ratio(wrong - 1, count - 1, k - 1)
    return jnp.where(
        mask & (count >= k)[..., None], scale * jnp.where(right, failing[..., None], of_wrong[..., None]), 0.0
    )


def _subset_ratio(
    successes: Int[jax.Array, "*batch"], trials: Int[jax.Array, "*batch"], k: int
) -> Float[jax.Array, "*batch"]:
    """C(part, k) / C(whole, k) as a product of k factors, each at most 1: no factorial overflows."""
    ratio = jnp.ones(successes.shape, jnp.float32)
    for i in range(k):
        ratio = ratio * jnp.maximum(successes - i, 0) / jnp.maximum(trials - i, 1)
    return ratio
