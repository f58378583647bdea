"""The table of metrics: what is written has a row, what has a row is written, and docs/users/metrics.md is current.

A run in the tests fails at a name without a row (tests/conftest.py). These tests find the rest without a run.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import jax
import numpy as np
import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration.options import configured_call
from fr3e_jax.configuration.shaping_sections import SHAPING_STEPS, ShapingConfig
from fr3e_jax.data.stream import SAVED
from fr3e_jax.objectives.shaping_steps import Tokens, apply_steps
from fr3e_jax.runs import declared_metrics
from fr3e_jax.runs.compilation import Compilations
from fr3e_jax.runs.declared_metrics import UndeclaredMetric, find
from fr3e_jax.runs.ledger import COUNTERS
from fr3e_jax.runs.metric_meanings import GROUPS
from fr3e_jax.runs.metrics import MetricsWriter
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.grading import JUDGE_COUNTS
from fr3e_jax.verbs.supervised.rft_responses import DROPPED
from fr3e_jax.verdict import Outcome

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "users" / "metrics.md"
PACKAGE = ROOT / "fr3e_jax"
WRITERS = [
    *(PACKAGE / "loop").glob("*.py"),
    *(PACKAGE / "learning").glob("*.py"),
    *sorted((PACKAGE / "verbs" / "supervised").glob("*.py")),
    PACKAGE / "data" / "stream.py",
    PACKAGE / "runs" / "ledger.py",
    PACKAGE / "session" / "grading.py",
    *(PACKAGE / "rollouts" / name for name in ("toolbox.py", "episode.py")),
]


def template(node: ast.JoinedStr) -> str:
    """``f"seconds/{name}"`` -> ``seconds/{}``."""
    return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)


def texts_of(tree: ast.AST) -> set[str]:
    """The strings of a file, f-strings with {} for what they hold."""
    plain = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return plain | {template(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)}


TREES = {path: ast.parse(path.read_text()) for path in WRITERS}
TEXTS = set().union(*map(texts_of, TREES.values()))


def shaping_metrics() -> set[str]:
    row, sequence = jax.ShapeDtypeStruct((2, 3), np.float32), jax.ShapeDtypeStruct((2,), bool)
    tokens = Tokens(*[row] * len(Tokens._fields))._replace(
        counted=jax.ShapeDtypeStruct((2, 3), bool),
        penalised=jax.ShapeDtypeStruct((2, 3), bool),
        places=jax.ShapeDtypeStruct((2, 3), np.int32),
        group=jax.ShapeDtypeStruct((2,), np.int32),
        right=sequence,
        finished=sequence,
        step=jax.ShapeDtypeStruct((), np.int32),
        epsilon_low=jax.ShapeDtypeStruct((), np.float32),
        epsilon_high=jax.ShapeDtypeStruct((), np.float32),
        log_vocabulary=jax.ShapeDtypeStruct((), np.float32),
    )
    found: set[str] = set()
    for name in SHAPING_STEPS:
        step, keywords = configured_call(ShapingConfig(), name)
        _, metrics = jax.eval_shape(lambda t, call=(step, dict(keywords)): apply_steps(t, [call]), tokens)
        found |= set(metrics)
    return found


def stages() -> set[str]:
    found = set().union(*(re.findall(r'(?:ledger|stages)\.stage\("([\w ]+)"\)', path.read_text()) for path in WRITERS))
    names = {name.replace(" ", "_") for name in found}
    assert {"first_return", "explore", "update", "sample"} <= names
    return names


FAMILIES = {
    "data/{}": SAVED[1:],
    "verifier/{}": get_args(Outcome),
    "judge/{}": JUDGE_COUNTS,
    "seconds/{}": stages(),
    "tokens/{}": COUNTERS,
    "compile/{}": Compilations._fields,
    "tools/{}": ("answered", "error", "timeout", "cut"),
    "environment/{}": ("cut", "ended", "out_of_turns", "cut_off", "faults"),
    "{}/given_share": ("tools", "environment"),
    "rft/dropped_{}": DROPPED,
    "rft/{}_right": ("entropy", "branching_factor"),
    "rft/{}_selected": ("entropy", "branching_factor"),
    "critic/{}": ("loss", "gradient_norm"),
    "shaping/{}": shaping_metrics(),
    "sampler_ratio/{}": ("fresh", "carried"),
    "sampler_ratio/{}_outside": ("fresh", "carried"),
    "{}_groups/all_right": ("base", "state"),
    "{}_groups/all_wrong": ("base", "state"),
    "{}_groups/mixed": ("base", "state"),
}
"""Names that the code makes: template in the code -> what it is filled with."""

EXPANDED = {name.replace("{}", one) for name, fillings in FAMILIES.items() for one in fillings}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_names_is_in_the_code(family):
    assert family in TEXTS


@pytest.mark.parametrize("name", sorted(EXPANDED))
def test_a_name_that_the_code_makes_has_a_row(name):
    assert find(name), f"add a row for {name} to fr3e_jax/runs/metric_meanings.py"


def test_a_name_that_the_code_spells_has_a_row():
    """Keys of dictionaries that look like metrics."""
    keys = {
        key.value
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    spelt = {key for key in keys if re.fullmatch(r"[a-z_]+/\w+", key)}
    assert len(spelt) > 40 and "alpha/min" in spelt
    assert sorted(name for name in spelt if not find(name) and not find(name, "eval")) == []


ROWS = [(group.kind, metric.name) for group in GROUPS for metric in group.metrics]


@pytest.mark.parametrize(("kind", "name"), ROWS, ids=lambda value: value)
def test_a_row_is_of_something_that_is_written(kind, name):
    plain = name.removeprefix("{set}/")  # scores of one benchmark have the names of the overall scores
    assert re.sub(r"\{\w\}", "{}", plain) in TEXTS | EXPANDED, f"nothing writes {name}; remove its row"


def test_no_name_has_two_rows():
    assert len(set(ROWS)) == len(ROWS)


def test_the_list_shows_the_metrics_whose_names_have_a_part(capsys):
    assert main(["metrics", "clip/"]) == 0
    shown = capsys.readouterr().out
    assert "clip/low" in shown and "share, 0 to 1" in shown and "reward/mean" not in shown
    assert main(["metrics", "no such"]) == 2
    assert "`fr3e metrics` lists all names" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind", "row"),
    [
        ("value/S_12", "train", "value/S_{j}"),
        ("avg@16", "eval", "avg@{k}"),
        ("math/test/pass@8", "eval", "{set}/pass@{k}"),
        ("avg@16", "train", None),
        ("value/S_x", "train", None),
        ("mine", "train", None),
    ],
)
def test_a_name_finds_its_row(name, kind, row):
    found = find(name, kind)
    assert (found and found.name) == row


def test_the_writer_refuses_an_undeclared_name_in_the_tests_and_takes_a_users_elsewhere(tmp_path, monkeypatch):
    writer = MetricsWriter(RunDirectory(tmp_path), resume_step=None)
    writer.write(1, {"reward/mean": 0.5})
    with pytest.raises(UndeclaredMetric, match="mine, reward/median.*add a row"):
        writer.write(2, {"mine": 1, "reward/mean": 0.5, "reward/median": 1})
    with pytest.raises(UndeclaredMetric, match="eval metrics reward/mean"):
        writer.write(2, {"reward/mean": 0.5}, kind="eval")
    monkeypatch.delenv(declared_metrics.STRICT)
    writer.write(2, {"mine": 1})
    assert '"mine": 1' in (tmp_path / "metrics.jsonl").read_text()
