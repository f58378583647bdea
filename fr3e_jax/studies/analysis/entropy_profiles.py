"""Entropy of tokens by tenth of the response and by sign of the sample, and tokens whose frequency or entropy changed.

(Deng et al. 2025, 3.2.2, 3.2.4 and table 3b.)

A positive sample is a right response, a negative sample a graded one that is not right. Every sampled token counts
once: those of a shared prefix count in the response that sampled them.

Dimension key: R responses, T tokens of all of them, V vocabulary.
"""

from __future__ import annotations

import math

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Number, Series, TextTable, finite
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import Responses, thirds

DECILES = 10
SHOWN = 25  # tokens of each kind of change
LEAST_COUNT = 5  # occurrences of a token that is compared


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


def token_entropies(responses: Responses, steps: list[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Occurrences in these steps and mean entropy of each token id below ``size``, ``[V]`` each; NaN without any."""
    mask = np.isin(responses.step, steps)[responses.owner] & responses.counted
    tokens = responses.tokens[mask]
    return np.bincount(tokens, minlength=size), bin_means(tokens, responses.entropies[mask], size)


def changes(responses: Responses, early: list[int], late: list[int]) -> dict[str, list[tuple[int, list[Number]]]]:
    """Kind of change → token ids with occurrences in 1,000 tokens, early and late, and mean entropies, early and late.

    Frequencies are compared for tokens that occur 5 times in both windows together, entropies for those that occur 5
    times in each. Each list has the largest change first.
    """
    size = int(responses.tokens.max()) + 1
    (first, before), (last, after) = (token_entropies(responses, steps, size) for steps in (early, late))
    rates = [1000 * count / max(1, count.sum()) for count in (first, last)]
    rise = np.where(first + last >= LEAST_COUNT, rates[1] - rates[0], 0.0)
    fall = np.where((first >= LEAST_COUNT) & (last >= LEAST_COUNT), before - after, 0.0)

    def listed(score: np.ndarray) -> list[tuple[int, list[Number]]]:
        order = [int(i) for i in np.argsort(-score, kind="stable")[:SHOWN] if score[i] > 0]
        columns = (rates[0], rates[1], before, after)
        return [(i, [finite(column[i]) for column in columns]) for i in order]

    return {"rose": listed(rise), "fell": listed(-rise), "entropy fell": listed(np.nan_to_num(fall))}


@analysis("rollouts and tokenizer", "Deng et al. 2025, table 3b")
def token_clouds(material: Material) -> TextTable:
    """Tokens by change from the first to the last third of training, with frequencies and entropies."""
    responses = material.training
    windows = thirds(responses.step.tolist())
    if len(windows) < 2:
        raise NothingToShow("needs two steps")
    codec = material.codec
    cells: list[list[str | Number]] = [
        [kind, codec.decode([token], special_tokens=True), token, *values]
        for kind, tokens in changes(responses, *windows.values()).items()
        for token, values in tokens
    ]
    if not cells:
        raise NothingToShow("no token changed in frequency or entropy")
    units = ("(of 1,000)", "entropy (nats)")
    return TextTable(
        title="Tokens that rose and fell",
        columns=["change", "token", "id", *(f"{when} {unit}" for unit in units for when in ("early", "late"))],
        cells=cells,
        note=f"{' and '.join(windows)}; sampled tokens, each counted once, {LEAST_COUNT} occurrences or more; "
        + responses.note,
    )
