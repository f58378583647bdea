"""Share of repetition in a text. On the host."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes


@checked_shapes
def n_gram_redundancy(token_ids: Int[AnyArray, " T"], n: int = 3) -> float:
    """1 − distinct n-grams / n-grams of a sequence; 0 where it is shorter than n.

    (Deng et al. 2025, 4.4.1, whose n is 3.)
    """
    ids = np.asarray(token_ids)
    if n < 1:
        raise ValueError(f"n={n} is not the length of an n-gram; expected at least 1")
    if len(ids) < n:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(ids, n)
    return 1.0 - len(np.unique(windows, axis=0)) / len(windows)
