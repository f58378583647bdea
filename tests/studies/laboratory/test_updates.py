"""``fr3e updates`` on a finished run: probabilities under two checkpoints, against a full forward pass of each."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fr3e_jax.cli import main
from fr3e_jax.session.run_weights import read_run_params
from fr3e_jax.studies.analysis.stored_run import StoredRun


def test_changes_are_those_of_full_forward_passes(finished_run, session, tiny_run, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["updates", str(finished_run), "--steps", "3,4", "--responses", "1000", "--out", str(out)]
    assert main(arguments) == 0
    assert "Token probability updates" in capsys.readouterr().out
    records = [record for record in StoredRun.open(finished_run).rollouts(4) if record.kind == "base"]
    abstract, changes = session.model.sharded_abstract_params(), []
    weights = [read_run_params(finished_run, abstract, step)[0] for step in (3, 4)]
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
