"""A run that leaves the finite numbers stops in one line, and every checkpoint on disk can be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from run_comparison import newest, reader
from runs_here import run_here

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.loop import train as train_module
from fr3e_jax.objectives.entropy import token_entropy
from fr3e_jax.programs.decode_steps import Drawn
from fr3e_jax.rollouts.engine import check_finite
from fr3e_jax.rollouts.requests import NonFiniteLogits
from fr3e_jax.runs.checkpoints import Checkpointer

KEPT = {"keep_last": 1, "keep_best": 1, "best_metric": "avg@3"}
RUINS = [np.nan, 1e10]  # the weights' factor; with 1e10 they stay finite, and squares of activations overflow


def ruined(params, factor: float):
    return jax.tree.map(lambda leaf: leaf * np.float32(factor), params)


def ruin_after(monkeypatch, step: int, factor: float) -> None:
    """Let the last update of ``step`` end with ruined weights."""
    update = train_module.update_policy

    def ruining(setup, learner, at, *others):
        metrics = update(setup, learner, at, *others)
        if at == step:
            learner.params = ruined(learner.params, factor)
        return metrics

    monkeypatch.setattr(train_module, "update_policy", ruining)


def saved_steps(path: Path) -> list[int]:
    with reader(path) as checkpoints:
        return checkpoints.all_steps()


def test_one_update_with_a_learning_rate_of_a_million_is_not_saved(session, tmp_path, tiny_run, capsys):
    """Loss and gradient of the update are finite, its weights too; the network's activations overflow."""
    twin = tiny_run.changed(session, optimizer__learning_rate=1e6, training__mini_batch_rollouts=20)
    assert run_here(twin, tmp_path / "run") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fr3e: stopped at step 1: the entropy under the weights of the policy after update 1 is nan")
    assert "lower optimizer.learning_rate (now 1e+06)" in line and "There is no checkpoint yet" in line
    assert saved_steps(tmp_path / "run") == []


@pytest.mark.parametrize("factor", RUINS)
def test_a_ruined_step_never_replaces_a_good_checkpoint(session, tmp_path, tiny_run, capsys, monkeypatch, factor):
    ruin_after(monkeypatch, 2, factor)
    assert run_here(tiny_run.changed(session, evaluation__every=0), tmp_path / "run") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fr3e: stopped at step 2: ") and "Last finite figures, of step 2: loss/policy" in line
    assert "the newest checkpoint, of step 1, is as it was" in line and "--resume" in line
    assert saved_steps(tmp_path / "run") == [1]
    arrays, _ = newest(tmp_path / "run", session)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(arrays["params"]))


@pytest.mark.parametrize(("every", "factor"), [(0, np.nan), (2, 1e10)], ids=["in the next step", "in an evaluation"])
def test_logits_that_are_not_finite_stop_the_run_while_it_samples(
    session, tmp_path, tiny_run, capsys, monkeypatch, factor, every
):
    ruin_after(monkeypatch, 2, factor)
    twin = tiny_run.changed(session, evaluation__every=every, checkpoint__every=3)
    assert run_here(twin, tmp_path / "run") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"stopped at step {2 if every else 3}: the logits of" in line and "tokens are NaN or infinite" in line
    for part in ("Last finite figures, of step 2: loss/policy", "gradient_norm/max", "There is no checkpoint yet"):
        assert part in line
    assert saved_steps(tmp_path / "run") == []


def test_a_run_that_starts_from_ruined_weights_names_them(session, tmp_path, tiny_run, capsys, monkeypatch):
    fresh = type(session.model).fresh_params
    monkeypatch.setattr(type(session.model), "fresh_params", lambda *arguments: ruined(fresh(*arguments), np.nan))
    assert run_here(session, tmp_path / "run") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "stopped at step 0: the logits of" in line
    assert "if the weights that the run starts from (the random weights of model.*) are damaged" in line


def test_a_policy_without_choices_is_not_called_a_good_one(session, tmp_path, tiny_run, capsys):
    """A learning rate of 1,000 leaves numbers finite and one token certain: equal rewards, whatever they are."""
    twin = tiny_run.changed(session, optimizer__learning_rate=1e3, training__mini_batch_rollouts=20)
    assert run_here(tiny_run.changed(twin, rollout__max_rounds_without_signal=2), tmp_path / "run") == 1
    message = capsys.readouterr().err
    assert "The policy gives one response to each prompt (mean entropy" in message
    assert "lower optimizer.learning_rate (now 1000)" in message and "already solves" not in message


def test_logits_of_minus_infinity_are_no_fault_and_lanes_without_a_token_are_not_read():
    logits = np.array([[0.0, -np.inf, 1.0], [np.nan, 0.0, 0.0]], np.float32)
    entropies = np.asarray(token_entropy(logits)).reshape(1, 1, 2)
    nothing = np.zeros((1, 1, 2))

    def emitted(*which):
        return jax.device_get(Drawn(np.array([[which]]), nothing > 0, nothing, nothing, entropies, nothing).emitted())

    check_finite(emitted(True, False))
    with pytest.raises(NonFiniteLogits, match="the logits of 1 of 2 tokens are NaN or infinite"):
        check_finite(emitted(True, True))


@pytest.fixture(scope="module", params=RUINS)
def ruined_run(request, finished_run, session, tmp_path_factory) -> Path:
    """A finished run whose newest checkpoint, of step 5, holds ruined weights."""
    path = tmp_path_factory.mktemp("ruined") / "run"
    shutil.copytree(finished_run, path)
    arrays, host = newest(path, session)
    with Checkpointer(path / "checkpoints", **KEPT | {"keep_last": 9}) as checkpoints:
        checkpoints.save(5, arrays | {"params": ruined(arrays["params"], request.param)}, host, None)
    return path


@pytest.mark.parametrize("verb", ["sample", "eval"])
def test_ruined_weights_are_neither_sampled_nor_evaluated(ruined_run, tmp_path, tiny_run, capsys, verb):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(to_yaml(tiny_run.config()))
    options = ["--prompt", "1="] if verb == "sample" else []
    assert main([verb, str(recipe), "--run", str(ruined_run), *options]) == 2
    printed = capsys.readouterr()
    line = printed.err.splitlines()[-1]
    assert line.startswith(f"fr3e: error: the weights of step 5 of {ruined_run} cannot be used: ") and not printed.out
    assert "NaN or infinite" in line and not (ruined_run / "evaluations").exists()
