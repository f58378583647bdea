"""The tokens that became more and less frequent, and those whose entropy fell. (Deng et al. 2025, table 3b.)"""

from __future__ import annotations

import numpy as np

from fr3e_jax.studies.analysis.entropy_profiles import bin_means
from fr3e_jax.studies.analysis.figure import Number, TextTable, finite
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import Responses, thirds

SHOWN = 25  # tokens of each kind of change
LEAST_COUNT = 5  # occurrences of a token that is compared


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
