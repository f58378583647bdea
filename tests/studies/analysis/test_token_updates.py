"""Token probability updates by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.token_updates import (
    TokenUpdates,
    category_of,
    load_categories,
    perplexity_of_updates,
    update_by_category,
    update_by_entropy,
    update_summary,
)

BEFORE = np.array([0.5, 0.9, 0.2, 0.4, 0.6, 0.8, 0.1, 0.3, 0.7, 0.95])
CHANGES = np.array([0.3, 0.01, 0.05, -0.02, 0.0, -0.4, -0.01, 0.02, 0.03, 0.0])


@pytest.fixture
def updates() -> TokenUpdates:
    return TokenUpdates(
        response=np.repeat([0, 1], 5),
        token_ids=np.arange(10),
        right=np.repeat([True, False], 5),
        before=np.log(BEFORE),
        after=np.log(BEFORE + CHANGES),
        entropies=np.linspace(1.0, 0.1, 10),
        gradients=np.arange(10.0),
        weights=np.array([2.0] * 5 + [np.nan] * 5),
        candidates=(np.full(10, 3), np.full(10, 2)),
    )


def test_the_summary_counts_small_changes_and_tells_positive_from_negative_samples(updates):
    table = update_summary(updates)
    rows = {row["tokens of"]: row for row in table.rows()}
    everything, positive, negative = (rows[name] for name in ("all", "positive samples", "negative samples"))
    assert everything["share with |Δp| < 0.06"] == 0.8 and everything["tokens"] == 10
    assert positive["mean Δp"] == pytest.approx(CHANGES[:5].mean())
    assert negative["mean |Δp|"] == pytest.approx(np.abs(CHANGES[5:]).mean())
    assert everything["G_t/|α_t| of the top 20 %"] == 2.5 and everything["G_t/|α_t| of all"] == 4.5  # tokens 0 and 5
    assert (everything["G_t of the top 20 %"], everything["G_t of all"]) == (0.0, 4.0)  # of the response that trained
    assert (everything["branching factor before"], everything["branching factor after"]) == (3.0, 2.0)


def test_means_by_tenth_of_the_entropy(updates):
    positive, negative, every = update_by_entropy(updates).series
    assert positive.y[:5] == [None] * 5 and positive.y[9] == pytest.approx(0.3)  # the first token has most entropy
    assert negative.y[4] == pytest.approx(-0.4) and every.y[4] == pytest.approx(0.4)


def test_categories_of_tokens_and_their_share_of_the_top(updates, tmp_path):
    categories = load_categories()
    texts = ["3", "frac", "+", "x", " Therefore", "wait", "Verify", "cat", "12", "number"]
    assert [category_of(text, categories) for text in texts] == [
        *["formal reasoning"] * 4,
        "logical structuring",
        *["metacognitive"] * 2,
        "semantic support",
        "formal reasoning",
        "semantic support",
    ]
    rows = {row["category"]: row for row in update_by_category(updates, texts, categories).rows()}
    assert rows["formal reasoning"]["share of them in the top 20 %"] == 0.2
    assert rows["metacognitive"]["share of the top 20 %"] == 0.5
    assert rows["metacognitive"]["mean |Δp|"] == pytest.approx((0.4 + 0.01) / 2)
    own = tmp_path / "own.yaml"
    own.write_text("digits: '\\d+'\n")
    assert category_of("x", load_categories(own)) == "other"
    own.write_text("digits: '('\n")
    with pytest.raises(ConfigError, match="own.yaml cannot be used"):
        load_categories(own)


def test_perplexity_is_that_of_the_response_of_each_token(updates):
    top, every = perplexity_of_updates(updates).series
    surprise = [-np.log(BEFORE[part]).mean() for part in (slice(0, 5), slice(5, 10))]
    assert every.y[0] == every.y[-1] == 0.5 and top.y[0] == top.y[-1] == 0.5 and sum(every.y) == 1
    width = abs(surprise[1] - surprise[0]) / 20
    assert every.x[0] == pytest.approx(min(surprise) + width / 2)
