"""``fr3e updates`` on a finished run: probabilities under two checkpoints, against a full forward pass of each."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fr3e_jax.cli import main
from fr3e_jax.programs.decode_steps import Alternatives
from fr3e_jax.session.run_weights import read_run_params
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.laboratory.updates import update_by_entropy, update_summary


def test_changes_are_those_of_full_forward_passes(finished_run, session, tiny_run, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["updates", str(finished_run), "--steps", "3,4", "--responses", "1000", "--out", str(out)]
    assert main(arguments) == 0
    assert "Token probability updates" in capsys.readouterr().out
    records = [record for record in StoredRun.open(finished_run).rollouts(4) if record.kind == "base"]
    changes = []
    weights = [read_run_params(finished_run, session.model, step)[0] for step in (3, 4)]
    for record in records:
        ids, start = np.concatenate([record.prompt_ids, record.token_ids]), len(record.prompt_ids)
        both = []
        for params in weights:
            logits = tiny_run.log_softmax(tiny_run.full_logits(session, params, ids))[start - 1 : -1]
            both.append(np.exp(np.take_along_axis(logits, np.array(record.token_ids)[:, None], axis=1)[:, 0]))
        changes.append(both[1] - both[0])
    table = json.loads((out / "token_updates.json").read_text())
    row = dict(zip(table["columns"], table["cells"][0], strict=True))
    assert row["tokens"] == sum(map(len, changes))
    assert row["mean Δp"] == pytest.approx(np.concatenate(changes).mean(), abs=1e-6)
    assert row["mean |Δp|"] == pytest.approx(np.abs(np.concatenate(changes)).mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--steps", "4,3"], "expected two of them, the earlier first"),
        (["--steps", "1,77"], "has checkpoints of steps"),
        (["--steps", "a"], "'a' is no list of steps"),
    ],
)
def test_mistakes_are_one_line(finished_run, capsys, arguments, expected):
    assert main(["updates", str(finished_run), *arguments]) == 2
    assert expected in capsys.readouterr().err


BEFORE = np.array([0.5, 0.9, 0.2, 0.4, 0.6, 0.8, 0.1, 0.3, 0.7, 0.95])
CHANGES = np.array([0.3, 0.01, 0.05, -0.02, 0.0, -0.4, -0.01, 0.02, 0.03, 0.0])


RIGHT = np.repeat([True, False], 5)


def alternatives(probabilities, candidates):
    """Ten tokens under a checkpoint; entropies fall, and gradients rise."""
    others, entropies, magnitudes = np.zeros(10), np.linspace(1.0, 0.1, 10), np.arange(10.0)
    return Alternatives(others, others, np.full(10, candidates), np.log(probabilities), entropies, magnitudes)


SIDES = alternatives(BEFORE, 3), alternatives(BEFORE + CHANGES, 2)


def test_the_summary_counts_small_changes_and_tells_positive_from_negative_samples():
    table = update_summary(*SIDES, RIGHT, np.array([2.0] * 5 + [np.nan] * 5), "")
    rows = {row["tokens of"]: row for row in table.rows()}
    everything, positive, negative = (rows[name] for name in ("all", "positive samples", "negative samples"))
    assert everything["share with |Δp| < 0.06"] == 0.8 and everything["tokens"] == 10
    assert positive["mean Δp"] == pytest.approx(CHANGES[:5].mean())
    assert negative["mean |Δp|"] == pytest.approx(np.abs(CHANGES[5:]).mean())
    assert everything["G_t/|α_t| of the top 20 %"] == 2.5 and everything["G_t/|α_t| of all"] == 4.5  # tokens 0 and 5
    assert (everything["G_t of the top 20 %"], everything["G_t of all"]) == (0.0, 4.0)  # of the response that trained
    assert (everything["branching factor before"], everything["branching factor after"]) == (3.0, 2.0)


def test_means_by_tenth_of_the_entropy():
    positive, negative, every = update_by_entropy(*SIDES, RIGHT, "").series
    assert positive.y[:5] == [None] * 5 and positive.y[9] == pytest.approx(0.3)  # the first token has most entropy
    assert negative.y[4] == pytest.approx(-0.4) and every.y[4] == pytest.approx(0.4)
