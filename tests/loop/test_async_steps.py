"""`rollout.async_steps=1`: the next step's rollouts are sampled with the weights from before the step that trains."""

from __future__ import annotations

import time
from pathlib import Path

import jax
import pytest
from run_comparison import assert_same_run, reader

from fr3e_jax.configuration import ConfigError
from fr3e_jax.loop import train as training
from fr3e_jax.loop.train import train
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.runs.rollout_parts import rollout_path
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.session import open_session

one_device = pytest.mark.skipif(jax.device_count() > 1, reason="sampling ahead is refused on several devices")
AHEAD = {"rollout__async_steps": 1, "loss__importance_cap": 2.0, "evaluation__every": 3}


def sampled(run: Path, step: int) -> list[tuple[str, list[int], list[float]]]:
    """Prompt, tokens and log-probs of every rollout of a step."""
    records = rollout_store.read_rollouts(rollout_path(RunDirectory(run), step))
    return [(one.problem_id, list(one.token_ids), list(one.logprobs)) for one in records]


@pytest.fixture(scope="module")
def ahead_run(tmp_path_factory, tiny_run) -> Path:
    """Four steps of FR3E that nothing interrupted. Surplus is carried; an evaluation comes after the third."""
    path = tmp_path_factory.mktemp("ahead") / "run"
    assert train(tiny_run.config(training__max_steps=4, **AHEAD), path) == 0
    return path


def training_metrics(run: Path) -> list[dict]:
    return [record for record in read_metrics(run / "metrics.jsonl") if record["kind"] == "train"]


@one_device
def test_the_weights_of_the_step_before_have_sampled(tmp_path, tiny_run):
    """The first two steps are those of a run whose weights never move; the third is not."""

    def run(name, steps, **settings):
        common = {"explore__enabled": False, "training__surplus": "drop", "training__max_steps": steps}
        assert train(tiny_run.config(**AHEAD | common | settings), tmp_path / name) == 0
        return tmp_path / name

    ahead, still = run("ahead", 3), run("still", 3, optimizer__learning_rate=1e-30)
    usual = run("usual", 2, rollout__async_steps=0)
    assert sampled(ahead, 1) == sampled(still, 1) == sampled(usual, 1)
    assert sampled(ahead, 2) == sampled(still, 2) != sampled(usual, 2)
    assert sampled(ahead, 3) != sampled(still, 3)


@one_device
def test_the_age_of_rollouts_is_recorded_and_no_log_prob_is_taken_for_the_policys(ahead_run):
    first, *others = training_metrics(ahead_run)
    assert first["batch/age_max"] == 0 and "logprob_gap/max" in first
    for metrics in others:
        assert metrics["batch/age_max"] >= 1 and "sampler_ratio/fresh" not in metrics
        assert metrics["sampler_ratio/carried"] > 0 and "logprob_gap/max" not in metrics


@one_device
def test_a_longer_run_goes_on_with_the_weights_that_it_would_have_used(tmp_path, tiny_run, ahead_run):
    """Three steps, whose end is evaluated as in the run of four, and then the fourth."""
    config = lambda count: tiny_run.config(training__max_steps=count, **AHEAD)
    assert train(config(3), tmp_path / "run") == 0
    assert train(config(4), tmp_path / "run", resume=True) == 0
    assert_same_run(tmp_path / "run", ahead_run, open_session(config(4)))


@one_device
def test_how_the_threads_share_the_machine_changes_nothing(tmp_path, tiny_run, ahead_run, monkeypatch):
    """A slow update lets the rollouts come first; in the other runs of this file, they come when they come."""
    update = training.update_policy
    monkeypatch.setattr(training, "update_policy", lambda *of: time.sleep(1.0) or update(*of))
    assert train(tiny_run.config(training__max_steps=4, **AHEAD), tmp_path / "run") == 0
    assert_same_run(tmp_path / "run", ahead_run, open_session(tiny_run.config(**AHEAD)))


@one_device
def test_an_error_ahead_ends_the_run_at_the_step_that_needs_the_rollouts(tmp_path, tiny_run, monkeypatch, capsys):
    """Step 2 finds no signal, while step 1 still trains: step 1 is saved first."""
    rounds = training.Rounds.run

    def nothing_trains(self, params, step, missing=0):
        found = rounds(self, params, step, missing)
        return found if step == 1 else found._replace(trunks=[])

    monkeypatch.setattr(training.Rounds, "run", nothing_trains)
    settings = AHEAD | {"rollout__max_rounds_without_signal": 1, "training__surplus": "drop"}
    assert train(tiny_run.config(training__max_steps=3, **settings), tmp_path / "run") == 1
    assert "stopped at step 2" in capsys.readouterr().err
    with reader(tmp_path / "run") as saved:
        assert saved.latest_step() == 1


@pytest.mark.skipif(jax.device_count() == 1, reason="needs 8 devices: make test-8")
def test_several_devices_are_refused(tmp_path, tiny_run):
    with pytest.raises(ConfigError, match="on one device, and this run has 8.*set rollout.async_steps=0"):
        train(tiny_run.config(**AHEAD), tmp_path / "run")
    assert not (tmp_path / "run").exists()
