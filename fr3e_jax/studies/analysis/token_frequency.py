"""The tokens that became more and less frequent, and those whose entropy fell. (Deng et al. 2025, table 3b.)"""

from __future__ import annotations

import numpy as np

from fr3e_jax.studies.analysis.entropy_profiles import LEAST_COUNT, token_entropies
from fr3e_jax.studies.analysis.figure import Number, TextTable
from fr3e_jax.studies.analysis.material import Material, NothingToShow
from fr3e_jax.studies.analysis.responses import Responses
from fr3e_jax.studies.analysis.success import thirds

SHOWN = 25  # tokens of each kind of change


def changes(responses: Responses, early: list[int], late: list[int]) -> dict[str, list[tuple[int, list[Number]]]]:
    """Kind of change → token ids with occurrences in 1,000 tokens, early and late, and mean entropies, early and late.

    Frequencies are compared for tokens that occur 5 times in both windows together, entropies for those that occur 5
    times in each. Each list has the largest change first.
    """
    size = int(responses.tokens.max()) + 1
    of_token = responses.step[responses.owner]
    masks = [np.isin(of_token, steps) & responses.counted for steps in (early, late)]
    (first, before), (last, after) = (
        token_entropies(responses.tokens[mask], responses.entropies[mask], size) for mask in masks
    )
    rates = [1000 * count / max(1, count.sum()) for count in (first, last)]
    rise = np.where(first + last >= LEAST_COUNT, rates[1] - rates[0], 0.0)
    fall = np.where((first >= LEAST_COUNT) & (last >= LEAST_COUNT), before - after, 0.0)

    def listed(score: np.ndarray) -> list[tuple[int, list[Number]]]:
        order = [int(i) for i in np.argsort(-score, kind="stable")[:SHOWN] if score[i] > 0]
        columns = (rates[0], rates[1], before, after)
        return [(i, [float(c[i]) if np.isfinite(c[i]) else None for c in columns]) for i in order]

    return {"rose": listed(rise), "fell": listed(-rise), "entropy fell": listed(np.nan_to_num(fall))}


def token_clouds(material: Material) -> TextTable:
    """Tokens by change from the first to the last third of training, with frequencies and entropies."""
    responses = material.training
    windows = thirds(responses.step.tolist())
    if len(windows) < 2:
        raise NothingToShow("needs two steps")
    codec = material.codec
    cells: list[list[str | Number]] = []
    for kind, tokens in changes(responses, *windows.values()).items():
        for token, values in tokens:
            cells.append([kind, codec.decode([token], special_tokens=True), token, *values])
    if not cells:
        raise NothingToShow("no token changed in frequency or entropy")
    return TextTable(
        name="token_clouds",
        title="Tokens that rose and fell",
        columns=[
            "change",
            "token",
            "id",
            "early (of 1,000)",
            "late (of 1,000)",
            "early entropy (nats)",
            "late entropy (nats)",
        ],
        cells=cells,
        source="Deng et al. 2025, table 3b",
        note=f"{' and '.join(windows)}; sampled tokens, each counted once, {LEAST_COUNT} occurrences or more; "
        + responses.note,
    )
