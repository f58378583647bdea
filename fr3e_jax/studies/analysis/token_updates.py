"""Token probabilities before and after updates: where learning happens.

(Deng et al. 2025, 3.2.2, figure 4.)

NumPy on the host. Dimension key: T tokens of all responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Series, TextTable

SMALL = 0.06  # a change of probability below this is none (Deng et al. 2025, 3.2.2)
TOP = 0.2  # the share of tokens with the greatest changes
TENTHS = 10


@dataclass(frozen=True)
class TokenUpdates:
    """Tokens of stored responses under two checkpoints; all arrays ``[T]``."""

    right: np.ndarray
    """bool: its response is right, a positive sample."""
    before: np.ndarray
    """Log-prob under the earlier checkpoint."""
    after: np.ndarray
    """Log-prob under the later one."""
    entropies: np.ndarray
    """Under the earlier checkpoint, in nats."""
    gradients: np.ndarray
    """G_t / |α_t| under the earlier checkpoint (Deng et al. 2025, eq. 4)."""
    weights: np.ndarray
    """|α_t| (`objectives.entropy.gradient_weight`); NaN where the response trained nothing."""
    candidates: tuple[np.ndarray, np.ndarray]
    """Tokens within the top 95 % of the mass, before and after (Deng et al. 2025, 2.2)."""

    @property
    def changes(self) -> np.ndarray:
        """Δp of each token."""
        return np.exp(self.after.astype(np.float64)) - np.exp(self.before.astype(np.float64))

    @property
    def top(self) -> np.ndarray:
        """bool, the `TOP` share of tokens with the greatest |Δp|."""
        size = np.abs(self.changes)
        chosen = np.zeros(len(size), bool)
        chosen[np.argsort(-size, kind="stable")[: max(1, round(TOP * len(size)))]] = True
        return chosen


def update_summary(updates: TokenUpdates, note: str) -> TextTable:
    """Shares of small changes, mean changes, gradients and candidates, for positive and negative samples.

    G_t is averaged over the tokens of responses that trained. FR3E's base rollouts do not.
    """
    weighted = updates.gradients * updates.weights
    trained = ~np.isnan(weighted)
    masks = {"all": np.ones(len(weighted), bool), "positive samples": updates.right}
    rows: list[dict[str, Any]] = []
    for name, mask in (masks | {"negative samples": ~updates.right}).items():
        changes, top = updates.changes[mask], mask & updates.top
        if not len(changes):
            continue
        row = {
            "tokens of": name,
            "tokens": len(changes),
            f"share with |Δp| < {SMALL}": _mean(np.abs(changes) < SMALL),
            "mean Δp": _mean(changes),
            "mean |Δp|": _mean(np.abs(changes)),
            "share that rose": _mean(changes > 0),
            "entropy of the top 20 %": _mean(updates.entropies[top]),
            "entropy of all": _mean(updates.entropies[mask]),
            "G_t/|α_t| of the top 20 %": _mean(updates.gradients[top]),
            "G_t/|α_t| of all": _mean(updates.gradients[mask]),
            "G_t of the top 20 %": _mean(weighted[top & trained]),
            "G_t of all": _mean(weighted[mask & trained]),
            "branching factor before": _mean(updates.candidates[0][mask]),
            "branching factor after": _mean(updates.candidates[1][mask]),
        }
        rows.append(row)
    return TextTable(
        name="token_updates",
        title="Token probability updates",
        columns=list(rows[0]),
        cells=[list(row.values()) for row in rows],
        source="Deng et al. 2025, 3.2.2, eq. 4 and 2.2",
        note=note,
    )


def update_by_entropy(updates: TokenUpdates, note: str) -> Figure:
    """Mean Δp of positive and negative samples, and mean |Δp|, by tenth of the entropy."""
    order = np.argsort(updates.entropies, kind="stable")
    tenth = np.empty(len(order), int)
    tenth[order] = np.arange(len(order)) * TENTHS // max(1, len(order))

    def line(name: str, values: np.ndarray, mask: np.ndarray) -> Series:
        return Series(name, list(range(1, TENTHS + 1)), [_mean(values[mask & (tenth == i)]) for i in range(TENTHS)])

    return Figure(
        name="updates_by_entropy",
        title="Probability updates by entropy",
        x_label="tenth of the entropy before, from the lowest",
        y_label="mean change",
        series=[
            line("positive samples, Δp", updates.changes, updates.right),
            line("negative samples, Δp", updates.changes, ~updates.right),
            line("all, |Δp|", np.abs(updates.changes), np.ones(len(order), bool)),
        ],
        source="Deng et al. 2025, figure 4",
        note=note,
    )


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
