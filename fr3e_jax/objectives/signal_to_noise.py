"""Signal and noise of repeated gradients, from their inner products alone. NumPy in float64, on the host.

Let g_1 ... g_N be independent gradients at the same weights. Their signal is ‖E g‖², their noise tr Cov g. A mean over
pairs of *different* repeats estimates the signal without bias; ‖mean g‖² does not, as the noise of the mean adds to it:

    signal = Σ_{i≠j} ⟨g_i, g_j⟩ / (N (N − 1)) = ‖mean g‖² − tr S / N      S: sample covariance, divided by N − 1
    noise  = Σ_i ‖g_i‖² / N − signal          = tr S

Both are sums of pairs, so a bootstrap only weighs them: repeat i counts c_i times, and a pair of copies of a repeat is
no pair of independent gradients. In simulations with 16 and 32 repeats the 95 % interval of the ratio held the truth in
91 to 98 % of cases, and in all cases without any signal. (Hoeffding 1948, U-statistics; McCandlish et al. 2018,
arXiv:1812.06162, appendix A.1, for the same two estimates from two batch sizes.)

Dimension key: N repeats, K parts of the oracle, D coordinates; `batch` is any leading axes (draws of a bootstrap).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes

_AT_ONCE = 1 << 16  # coordinates in float64 at a time


@checked_shapes
def inner_products(left: Float[np.ndarray, "N D"], right: Float[np.ndarray, "K D"]) -> Float[np.ndarray, "N K"]:
    """⟨left_i, right_k⟩ of vectors of any float type, summed in float64."""
    products = np.zeros((len(left), len(right)))
    for start in range(0, left.shape[1], _AT_ONCE):
        piece = slice(start, start + _AT_ONCE)
        products += left[:, piece].astype(np.float64) @ right[:, piece].astype(np.float64).T
    return products


@checked_shapes
def count_sketch(
    values: Float[np.ndarray, " D"], places: Int[np.ndarray, " D"], signs: Shaped[np.ndarray, " D"], size: int
) -> Float[np.ndarray, " _"]:
    """Σ_d sign_d values_d at place_d: ``size`` coordinates whose inner products have the mean of the full ones.

    (Charikar et al. 2002, count sketch.) With random places and signs ±1, the same for all vectors, the variance of an
    inner product ⟨x, y⟩ is at most 2 ‖x‖² ‖y‖² / size. Sketches of parts of a vector add up.
    """
    return np.bincount(places, weights=signs * values.astype(np.float64), minlength=size)


@checked_shapes
def signal_and_noise(
    products: Float[np.ndarray, "N N"], counts: Shaped[np.ndarray, "*batch N"] | None = None
) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
    """Unbiased ‖E g‖² and tr Cov g from ``products[i, j] = ⟨g_i, g_j⟩``; the signal may come out negative.

    ``counts``: how often a draw of a bootstrap took each repeat; None: each once. A draw of a single repeat gives NaN.
    """
    counts = np.ones(len(products)) if counts is None else np.asarray(counts, np.float64)
    diagonal = np.diagonal(products)
    total = np.einsum("...i,ij,...j->...", counts, products, counts, optimize=True)
    signal = _divided(total - (counts**2) @ diagonal, _pairs(counts))
    return signal, np.asarray(counts @ diagonal / counts.sum(axis=-1) - signal)


@checked_shapes
def aimed_signal(
    crossed: Float[np.ndarray, "N K"],
    oracle: Float[np.ndarray, "K K"],
    counts: Shaped[np.ndarray, "*batch N"] | None = None,
) -> Float[np.ndarray, "*batch"]:
    """⟨E g, E o⟩² / ‖E o‖²: the part of the signal along the oracle's direction; numerator and denominator unbiased.

    The oracle is noisy, too. So it comes in K independent parts, and the square takes two different repeats with two
    different parts: Σ_{i≠j} Σ_{k≠l} ⟨g_i, o_k⟩ ⟨g_j, o_l⟩. NaN if the oracle's own signal is not above 0.

    Args:
      crossed: ⟨g_i, o_k⟩.
      oracle: ⟨o_k, o_l⟩.
      counts: see `signal_and_noise`.
    """
    counts = np.ones(len(crossed)) if counts is None else np.asarray(counts, np.float64)
    parts = counts @ crossed
    same_repeat = (counts**2) @ crossed.sum(axis=1) ** 2
    both = (counts**2) @ (crossed**2).sum(axis=1)
    square = parts.sum(axis=-1) ** 2 - same_repeat - (parts**2).sum(axis=-1) + both
    strength = float(signal_and_noise(oracle)[0])
    k = len(oracle)
    return np.asarray(_divided(square / (k * (k - 1)), _pairs(counts)) / (strength if strength > 0 else np.nan))


@checked_shapes
def oracle_cosine(
    crossed: Float[np.ndarray, "N K"],
    oracle: Float[np.ndarray, "K K"],
    products: Float[np.ndarray, "N N"],
    counts: Shaped[np.ndarray, "*batch N"] | None = None,
) -> Float[np.ndarray, "*batch"]:
    """cos(E g, E o) = ⟨E g, E o⟩ / √(‖E g‖² ‖E o‖²), each of the three unbiased: 1 less the estimator's own bias.

    NaN where a signal is not above 0. Noise may take the estimate above 1. Arguments: see `aimed_signal`.
    """
    counts = np.ones(len(crossed)) if counts is None else np.asarray(counts, np.float64)
    inner = counts @ crossed.mean(axis=1) / counts.sum(axis=-1)
    strengths = signal_and_noise(products, counts)[0] * signal_and_noise(oracle)[0]
    return np.asarray(inner / np.sqrt(np.where(strengths > 0, strengths, np.nan)))


def _pairs(counts: np.ndarray) -> np.ndarray:
    """Σ_{i≠j} c_i c_j."""
    return np.asarray(counts.sum(axis=-1) ** 2 - (counts**2).sum(axis=-1))


def _divided(total: Shaped[AnyArray, "*batch"], pairs: np.ndarray) -> np.ndarray:
    return np.asarray(total / np.where(pairs > 0, pairs, np.nan))
