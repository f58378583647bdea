"""Token probabilities before and after updates: where learning happens.

(Deng et al. 2025, 3.2.2, 3.2.3, figures 4, 5a.)

NumPy on the host. Dimension key: T tokens of all responses, R responses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.figure import Figure, Finding, Series, TextTable

CATEGORIES = Path(__file__).with_name("token_categories.yaml")
SMALL = 0.06  # a change of probability below this is none (Deng et al. 2025, 3.2.2)
TOP = 0.2  # the share of tokens with the greatest changes
TENTHS = 10
BINS = 20


@dataclass(frozen=True)
class TokenUpdates:
    """Tokens of stored responses under two checkpoints; all arrays ``[T]``."""

    response: np.ndarray
    """int, the response of each token, from 0."""
    token_ids: np.ndarray
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


def load_categories(path: Path | None = None) -> dict[str, re.Pattern[str]]:
    """Categories of tokens and their patterns, in the order in which they are tried.

    Raises:
      ConfigError: the file cannot be read, or is no mapping from names to regular expressions.
    """
    path = path or CATEGORIES
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {str(name): re.compile(pattern) for name, pattern in content.items()}
    except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError, re.error) as error:
        raise ConfigError(
            f"{path} cannot be used ({error}); expected a mapping of names to regular expressions"
        ) from error


def category_of(text: str, categories: Mapping[str, re.Pattern[str]]) -> str:
    """The first category whose pattern matches the whole token without blanks around it; "other" if none does."""
    stripped = text.strip()
    return next((name for name, pattern in categories.items() if pattern.fullmatch(stripped)), "other")


def update_findings(
    updates: TokenUpdates, texts: Sequence[str], categories: Mapping[str, re.Pattern[str]], note: str
) -> list[Finding]:
    """All findings of this module; ``texts``: of the tokens ``[T]``."""
    made = [
        update_summary(updates),
        update_by_entropy(updates),
        update_by_category(updates, texts, categories),
        perplexity_of_updates(updates),
    ]
    return [replace(finding, note=note) for finding in made]


def update_summary(updates: TokenUpdates) -> TextTable:
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
    )


def update_by_entropy(updates: TokenUpdates) -> Figure:
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
    )


def update_by_category(
    updates: TokenUpdates, texts: Sequence[str], categories: Mapping[str, re.Pattern[str]]
) -> TextTable:
    """The share of each category of tokens among the most updated tokens; ``texts``: of the tokens ``[T]``."""
    names = np.array([category_of(text, categories) for text in texts])
    size, top = np.abs(updates.changes), updates.top
    masks = {name: names == name for name in [*categories, "other"]}
    return TextTable(
        name="updates_by_category",
        title="Updates by kind of token",
        columns=["category", "tokens", "mean |Δp|", "share of them in the top 20 %", "share of the top 20 %"],
        cells=[
            [name, int(mask.sum()), _mean(size[mask]), _mean(top[mask]), _mean(mask[top])]
            for name, mask in masks.items()
            if mask.any()
        ],
        source="Deng et al. 2025, 3.2.2, table 1",
    )


def perplexity_of_updates(updates: TokenUpdates) -> Figure:
    """ln PPL of the responses of the most updated tokens, and of all tokens."""
    lengths = np.bincount(updates.response)
    sums = np.bincount(updates.response, weights=-updates.before.astype(np.float64))
    surprise = (sums / np.maximum(1, lengths))[updates.response]
    edges = np.linspace(surprise.min(), surprise.max() if np.ptp(surprise) else surprise.min() + 1, BINS + 1)
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    masks = {"top 20 % by |Δp|": updates.top, "all tokens": np.ones(len(surprise), bool)}
    return Figure(
        name="perplexity_of_updates",
        title="Perplexity of the responses in which probabilities moved",
        kind="bars",
        x_label="ln PPL before",
        y_label="share of tokens",
        series=[
            Series(name, middles, (np.histogram(surprise[mask], edges)[0] / mask.sum()).tolist())
            for name, mask in masks.items()
        ],
        source="Deng et al. 2025, figure 5a",
    )


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
