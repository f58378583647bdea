"""Token probabilities before and after updates: where learning happens.

(Deng et al. 2025, 3.2.2, 3.2.3, figures 4, 5a.)

NumPy on the host. Dimension key: T tokens of all responses, R responses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """bool, whether its response is right: a positive sample."""
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


def update_summary(updates: TokenUpdates, note: str) -> TextTable:
    """Shares of small changes, mean changes, gradients and candidates, for positive and negative samples.

    G_t is averaged over the tokens of responses that trained. FR3E's base rollouts do not.
    """
    changes, weighted = updates.changes, updates.gradients * updates.weights
    trained = ~np.isnan(weighted)
    rows: list[list[str | int | float | None]] = []
    for name, members in (("all", None), ("positive samples", updates.right), ("negative samples", ~updates.right)):
        members = np.ones(len(changes), bool) if members is None else members
        if not members.any():
            continue
        own, top = changes[members], updates.top[members]
        scored, best = weighted[members & trained], weighted[members & trained & updates.top]
        rows.append(
            [
                name,
                int(members.sum()),
                float((np.abs(own) < SMALL).mean()),
                float(own.mean()),
                float(np.abs(own).mean()),
                float((own > 0).mean()),
                float(updates.entropies[members][top].mean()) if top.any() else None,
                float(updates.entropies[members].mean()),
                float(updates.gradients[members][top].mean()) if top.any() else None,
                float(updates.gradients[members].mean()),
                float(best.mean()) if len(best) else None,
                float(scored.mean()) if len(scored) else None,
                *(float(side[members].mean()) for side in updates.candidates),
            ]
        )
    columns = ["tokens of", "tokens", f"share with |Δp| < {SMALL}", "mean Δp", "mean |Δp|", "share that rose"]
    columns += ["entropy of the top 20 %", "entropy of all", "G_t/|α_t| of the top 20 %", "G_t/|α_t| of all"]
    columns += ["G_t of the top 20 %", "G_t of all"]
    columns += ["branching factor before", "branching factor after"]
    return TextTable(
        "token_updates", "Token probability updates", columns, rows, "Deng et al. 2025, 3.2.2, eq. 4 and 2.2", note
    )


def update_by_entropy(updates: TokenUpdates, note: str) -> Figure:
    """Mean Δp of positive and negative samples, and mean |Δp|, by tenth of the entropy.

    (Deng et al. 2025, figure 4.)
    """
    order = np.argsort(updates.entropies, kind="stable")
    tenth = np.empty(len(order), int)
    tenth[order] = np.arange(len(order)) * TENTHS // max(1, len(order))
    places = list(range(1, TENTHS + 1))

    def means(values: np.ndarray, members: np.ndarray) -> list[float | None]:
        chosen = [values[members & (tenth == place - 1)] for place in places]
        return [float(one.mean()) if len(one) else None for one in chosen]

    every, changes = np.ones(len(order), bool), updates.changes
    series = [
        Series("positive samples, Δp", places, means(changes, updates.right)),
        Series("negative samples, Δp", places, means(changes, ~updates.right)),
        Series("all, |Δp|", places, means(np.abs(changes), every)),
    ]
    title, label = "Probability updates by entropy", "tenth of the entropy before, from the lowest"
    return Figure(
        "updates_by_entropy", title, "lines", label, "mean change", series, "Deng et al. 2025, figure 4", note
    )


def update_by_category(
    updates: TokenUpdates, texts: Sequence[str], categories: Mapping[str, re.Pattern[str]], note: str
) -> TextTable:
    """For each category of tokens, its share among the most updated tokens; ``texts``: of the tokens ``[T]``."""
    names = np.array([category_of(text, categories) for text in texts])
    size, top = np.abs(updates.changes), updates.top
    rows: list[list[str | int | float | None]] = []
    for name in [*categories, "other"]:
        members = names == name
        if members.any():
            share = float(top[members].mean())
            rows.append([name, int(members.sum()), float(size[members].mean()), share, float(members[top].mean())])
    columns = ["category", "tokens", "mean |Δp|", "share of them in the top 20 %", "share of the top 20 %"]
    return TextTable(
        "updates_by_category", "Updates by kind of token", columns, rows, "Deng et al. 2025, 3.2.2, table 1", note
    )


def perplexity_of_updates(updates: TokenUpdates, note: str) -> Figure:
    """ln PPL of the responses of the most updated tokens, and of all tokens. (Deng et al. 2025, figure 5a.)"""
    count = int(updates.response.max(initial=-1)) + 1
    sums = np.bincount(updates.response, weights=-updates.before.astype(np.float64), minlength=count)
    surprise = (sums / np.maximum(1, np.bincount(updates.response, minlength=count)))[updates.response]
    edges = np.linspace(surprise.min(), surprise.max() if np.ptp(surprise) else surprise.min() + 1, BINS + 1)
    middles = [float(middle) for middle in (edges[:-1] + edges[1:]) / 2]
    series = []
    for name, members in (("top 20 % by |Δp|", updates.top), ("all tokens", np.ones(len(surprise), bool))):
        found = np.histogram(surprise[members], edges)[0]
        series.append(Series(name, middles, [float(share) for share in found / found.sum()]))
    title = "Perplexity of the responses in which probabilities moved"
    return Figure(
        "perplexity_of_updates",
        title,
        "bars",
        "ln PPL before",
        "share of tokens",
        series,
        "Deng et al. 2025, figure 5a",
        note,
    )


def update_findings(
    updates: TokenUpdates, texts: Sequence[str], categories: Mapping[str, re.Pattern[str]], note: str
) -> list[Finding]:
    """All findings of this module."""
    return [
        update_summary(updates, note),
        update_by_entropy(updates, note),
        update_by_category(updates, texts, categories, note),
        perplexity_of_updates(updates, note),
    ]
