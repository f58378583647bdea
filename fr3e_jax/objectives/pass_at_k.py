"""Success of k attempts, estimated on the host from n ≥ k of them. NumPy in float64: nothing here is differentiated.

Dimension key: P prompts; `batch` is any leading axes.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes


@checked_shapes
def pass_at_k(num_samples: int, num_correct: int | Shaped[AnyArray, "*batch"], k: int) -> Float[np.ndarray, "*batch"]:
    """pass@k = 1 − C(n−c, k) / C(n, k) = 1 − Π_{i=n−c+1}^{n} (1 − k/i), unbiased.

    (Deng et al. 2025, eq. 2; Chen et al. 2021.)

    ``num_samples`` n and ``num_correct`` c (one or an array, 0 ≤ c ≤ n) → float64 of c's shape. The product has no
    large numbers, and is exactly 0 where k > n − c, as one factor has i = k.

    Raises:
      ValueError: unless 1 ≤ k ≤ n and 0 ≤ c ≤ n.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} cannot be estimated from {num_samples} samples: draw more, or choose 1 <= k <= samples"
        )
    correct = np.asarray(num_correct, dtype=np.int64)
    if correct.size and (correct.min() < 0 or correct.max() > num_samples):
        raise ValueError(f"found {correct.min()}..{correct.max()} correct samples, expected 0..{num_samples}")
    factors = 1.0 - k / np.arange(num_samples, 0, -1)
    all_wrong = np.concatenate([[1.0], np.cumprod(factors)])  # by number of correct samples
    return np.asarray(1.0 - all_wrong[correct])


@checked_shapes
def avg_at_k(correct: Shaped[AnyArray, "*batch k"]) -> Float[np.ndarray, "*batch"]:
    """avg@k = (1/k) Σ_i r_i over the last axis, in float64: pass@1 estimated from k samples."""
    return np.asarray(np.mean(np.asarray(correct, dtype=np.float64), axis=-1))
