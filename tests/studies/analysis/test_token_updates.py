"""Token probability updates by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.studies.analysis.token_updates import (
    TokenUpdates,
    update_by_entropy,
    update_summary,
)

BEFORE = np.array([0.5, 0.9, 0.2, 0.4, 0.6, 0.8, 0.1, 0.3, 0.7, 0.95])
CHANGES = np.array([0.3, 0.01, 0.05, -0.02, 0.0, -0.4, -0.01, 0.02, 0.03, 0.0])


@pytest.fixture
def updates() -> TokenUpdates:
    return TokenUpdates(
        right=np.repeat([True, False], 5),
        before=np.log(BEFORE),
        after=np.log(BEFORE + CHANGES),
        entropies=np.linspace(1.0, 0.1, 10),
        gradients=np.arange(10.0),
        weights=np.array([2.0] * 5 + [np.nan] * 5),
        candidates=(np.full(10, 3), np.full(10, 2)),
    )


def test_the_summary_counts_small_changes_and_tells_positive_from_negative_samples(updates):
    table = update_summary(updates, "")
    rows = {row["tokens of"]: row for row in table.rows()}
    everything, positive, negative = (rows[name] for name in ("all", "positive samples", "negative samples"))
    assert everything["share with |Δp| < 0.06"] == 0.8 and everything["tokens"] == 10
    assert positive["mean Δp"] == pytest.approx(CHANGES[:5].mean())
    assert negative["mean |Δp|"] == pytest.approx(np.abs(CHANGES[5:]).mean())
    assert everything["G_t/|α_t| of the top 20 %"] == 2.5 and everything["G_t/|α_t| of all"] == 4.5  # tokens 0 and 5
    assert (everything["G_t of the top 20 %"], everything["G_t of all"]) == (0.0, 4.0)  # of the response that trained
    assert (everything["branching factor before"], everything["branching factor after"]) == (3.0, 2.0)


def test_means_by_tenth_of_the_entropy(updates):
    positive, negative, every = update_by_entropy(updates, "").series
    assert positive.y[:5] == [None] * 5 and positive.y[9] == pytest.approx(0.3)  # the first token has most entropy
    assert negative.y[4] == pytest.approx(-0.4) and every.y[4] == pytest.approx(0.4)
