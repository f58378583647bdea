"""Entropy by position and by sign of the sample.

(Deng et al. 2025, 3.2.2 and 3.2.4.)

A positive sample is a right response, a negative sample a graded one that is not right. Every sampled token counts
once: those of a shared prefix count in the response that sampled them.

Dimension key: R responses, T tokens of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Number, Series, finite
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import Responses

DECILES = 10
POSITION_BINS = 50


def bin_means(bins: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Mean of ``values`` in each of ``size`` bins, NaN in empty ones."""
    count = np.bincount(bins, minlength=size)
    sums = np.bincount(bins, weights=values.astype(np.float64), minlength=size)
    return np.divide(sums, count, out=np.full(size, math.nan), where=count > 0)


def relative_decile(responses: Responses) -> np.ndarray:
    """int64 ``[T]``: decile ⌊10 t / |o|⌋ of each token, t = 0 … |o|−1 its place in the whole response of |o| tokens."""
    return responses.position * DECILES // np.repeat(responses.lengths, responses.lengths)


def _profile(responses: Responses, bins: np.ndarray, labels: Sequence[float] | Sequence[str]) -> list[Series]:
    """The mean entropy of the tokens ``[T]`` of each bin, for all, right and wrong responses."""

    def means(mask: np.ndarray) -> list[Number]:
        tokens = mask[responses.owner] & responses.counted
        return [finite(mean) for mean in bin_means(bins[tokens], responses.entropies[tokens], len(labels))]

    masks = {"all": np.ones(len(responses), bool)} | responses.by_outcome
    return [Series(name, labels, means(mask)) for name, mask in masks.items() if mask.any()]


@analysis("training rollouts", "Deng et al. 2025, figure 6a")
def entropy_by_relative_position(material: Material) -> Figure:
    """Mean token entropy in each tenth of the response: a U shape, in the paper."""
    responses = material.training
    labels = [f"{10 * i} to {10 * i + 10} %" for i in range(DECILES)]
    return Figure(
        title="Entropy by tenth of the response",
        kind="bars",
        x_label="place in the response",
        y_label="entropy (nats)",
        series=_profile(responses, relative_decile(responses), labels),
        note=f"mean over sampled tokens, each counted once; {responses.note}",
    )


@analysis("training rollouts", "Deng et al. 2025, figure 6a")
def entropy_by_position(material: Material) -> Figure:
    """Mean token entropy by place from the start, for all, right and wrong responses."""
    responses = material.training
    width = max(1, math.ceil(int(responses.lengths.max()) / POSITION_BINS))
    bins = responses.position // width
    return Figure(
        title="Entropy by position",
        x_label="position (tokens)",
        y_label="entropy (nats)",
        series=_profile(responses, bins, [i * width for i in range(int(bins.max()) + 1)]),
        note=f"mean over sampled tokens in bins of {width}, each counted once; {responses.note}",
    )


def exclusive_tokens(tokens: np.ndarray, negative: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """int64 ``[T]``: 0 where the id occurs in negative samples only, 1 in positive only, 2 in both, 3 in none."""
    in_negative, in_positive = (np.isin(tokens, np.unique(tokens[mask])) for mask in (negative, positive))
    return np.select([in_negative & ~in_positive, in_positive & ~in_negative, in_negative & in_positive], [0, 1, 2], 3)


@analysis("training rollouts", "Deng et al. 2025, 3.2.2, figure 3c")
def entropy_by_sign(material: Material) -> Figure:
    """Mean entropy in positive and negative samples by step, and of tokens exclusive to either.

    A token is exclusive to negative samples of a step if its id occurs in no positive sample of that step.
    """
    responses = material.training
    token_step = responses.step[responses.owner]
    lines: dict[str, dict[int, float]] = {}
    for step in np.unique(responses.step):
        sampled = np.flatnonzero(responses.counted & (token_step == step))
        positive, negative = (responses.by_outcome[name][responses.owner[sampled]] for name in ("right", "wrong"))
        exclusive = exclusive_tokens(responses.tokens[sampled], negative, positive)
        masks = {
            "positive samples": positive,
            "negative samples": negative,
            "tokens in positive samples only": exclusive == 1,
            "tokens in negative samples only": exclusive == 0,
        }
        for name, mask in masks.items():
            if mask.any():
                mean = responses.entropies[sampled][mask].mean(dtype=np.float64)
                lines.setdefault(name, {})[int(step)] = float(mean)
    if not lines:
        raise NothingToShow("no graded rollout")
    return Figure(
        title="Entropy in positive and negative samples",
        y_label="entropy (nats)",
        series=[Series(name, list(points), list(points.values())) for name, points in lines.items()],
        note=f"positive: right; exclusive within a step; {responses.note}",
    )
