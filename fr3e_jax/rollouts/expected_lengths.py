"""The lengths that a recipe expects of its responses: sizes are chosen by them before any response is known."""

from __future__ import annotations

import numpy as np

COUNT = 256  # lengths of the distribution


def expected_lengths(mean: int, cap: int) -> np.ndarray:
    """Tokens of `COUNT` responses in rising order, int64, each at least 1.

    Up to half of the cap, the lengths have a long tail: they are exponential, and longer ones are cut. Beyond, they lie
    evenly between ``2 mean - cap`` and the cap.

    Args:
      mean: tokens of a response; 0: half of the cap.
      cap: the most tokens of a response.
    """
    mean, at = mean or max(cap // 2, 1), (np.arange(COUNT) + 0.5) / COUNT
    lengths = -mean * np.log1p(-at) if mean <= cap / 2 else 2 * mean - cap + at * 2 * (cap - mean)
    return np.clip(np.rint(lengths), 1, cap).astype(np.int64)
