"""Entropy of tokens by tenth of the response and by sign of the sample. (Deng et al. 2025, 3.2.2 and 3.2.4.)

A positive sample is a right response, a negative sample a graded one that is not right. Every sampled token counts
once: those of a shared prefix count in the response that sampled them.

Dimension key: R responses, T tokens of all of them.
"""

from __future__ import annotations

import math

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Series, finite
from fr3e_jax.studies.analysis.material import Material, analysis

DECILES = 10


def bin_means(bins: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Mean of ``values`` in each of ``size`` bins, NaN in empty ones."""
    count = np.bincount(bins, minlength=size)
    sums = np.bincount(bins, weights=values.astype(np.float64), minlength=size)
    return np.divide(sums, count, out=np.full(size, math.nan), where=count > 0)


@analysis("training rollouts", "Deng et al. 2025, figure 6a")
def entropy_by_relative_position(material: Material) -> Figure:
    """Mean token entropy in each tenth of the response: a U shape, in the paper.

    The tenth of a token is ⌊10 t / |o|⌋, with t = 0 … |o|−1 its place in the whole response of |o| tokens.
    """
    responses = material.training
    labels = [f"{10 * i} to {10 * i + 10} %" for i in range(DECILES)]
    tenth = responses.position * DECILES // np.repeat(responses.lengths, responses.lengths)
    series = []
    for name, mask in ({"all": np.ones(len(responses), bool)} | responses.by_outcome).items():
        tokens = mask[responses.owner] & responses.counted
        means = bin_means(tenth[tokens], responses.entropies[tokens], DECILES)
        series.append(Series(name, labels, [finite(mean) for mean in means]))
    return Figure(
        title="Entropy by tenth of the response",
        kind="bars",
        x_label="place in the response",
        y_label="entropy (nats)",
        series=series,
        note=f"mean over sampled tokens, each counted once; {responses.note}",
    )


@analysis("training rollouts", "Deng et al. 2025, 3.2.2, figure 3c")
def entropy_by_sign(material: Material) -> Figure:
    """Mean entropy in positive and negative samples by step, and of tokens exclusive to either.

    A token is exclusive to negative samples of a step if its id occurs in no positive sample of that step.
    """
    responses = material.graded_training
    token_step = responses.step[responses.owner]
    lines: dict[str, dict[int, float]] = {}
    for step in np.unique(responses.step):
        sampled = np.flatnonzero(responses.counted & (token_step == step))
        right, graded = (column[responses.owner[sampled]] for column in (responses.right, responses.graded))
        positive, negative = right & graded, ~right & graded
        tokens = responses.tokens[sampled]
        in_positive, in_negative = (np.isin(tokens, tokens[mask]) for mask in (positive, negative))
        masks = {
            "positive samples": positive,
            "negative samples": negative,
            "tokens in positive samples only": in_positive & ~in_negative,
            "tokens in negative samples only": in_negative & ~in_positive,
        }
        for name, mask in masks.items():
            if mask.any():
                mean = responses.entropies[sampled][mask].mean(dtype=np.float64)
                lines.setdefault(name, {})[int(step)] = float(mean)
    return Figure(
        title="Entropy in positive and negative samples",
        y_label="entropy (nats)",
        series=[Series(name, list(points), list(points.values())) for name, points in lines.items()],
        note=f"positive: right; exclusive within a step; {responses.note}",
    )
