"""Percentile bootstrap of means and of paired differences. NumPy alone; every draw follows from a seed.

Dimension key: S seeds (replicates), P problems, D draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 10_000
LEVEL = 0.95
_DRAWN_AT_ONCE = 2_000_000  # places drawn in one piece, so that many problems need little memory


def means_of_resamples(values: np.ndarray, *, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Means of ``draws`` resamples with replacement of ``values`` ``[S, ...]`` along the first axis → ``[D, ...]``.

    All trailing places share their resamples: of each draw, the same seeds (or problems) are taken everywhere.

    Raises:
      ValueError: there are no values.
    """
    values = np.asarray(values, np.float64)
    size = len(values)
    if not size:
        raise ValueError("found no values; expected at least one to draw from")
    generator = np.random.default_rng(seed)
    pieces, step = [], max(1, _DRAWN_AT_ONCE // size)
    for start in range(0, draws, step):
        drawn = generator.integers(0, size, (min(step, draws - start), size))
        counts = np.zeros((len(drawn), size))
        np.add.at(counts, (np.arange(len(drawn))[:, None], drawn), 1.0)
        pieces.append(np.tensordot(counts, values, axes=1) / size)
    return np.concatenate(pieces)


def percentiles(draws: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the central ``level`` of ``draws`` ``[D, ...]`` → two arrays ``[...]``."""
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(draws, [tail, 100 - tail], axis=0)
    return low, high


def interval_of_mean(values: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float] | None:
    """Bootstrap interval of the mean; None for fewer than two values, of which nothing can be said.

    With few values the percentile interval is too narrow: with two or three it cannot pass the smallest and largest.
    """
    if len(values) < 2:
        return None
    low, high = percentiles(means_of_resamples(np.asarray(values), draws=draws, seed=seed))
    return float(low), float(high)


def interval_over_problems(differences: Sequence[np.ndarray], *, seed: int = 0) -> tuple[float, float] | None:
    """Paired bootstrap over problems: the interval of the mean over sets of the mean difference of a set.

    ``differences``: for each evaluation set, the difference of two policies on each of its problems ``[P]``. Problems
    are drawn within their set. None if no set has two problems.
    """
    if not any(len(of_set) > 1 for of_set in differences):
        return None
    means = [means_of_resamples(of_set, seed=seed + i) for i, of_set in enumerate(differences)]
    low, high = percentiles(np.mean(means, axis=0))
    return float(low), float(high)
