"""A run that was stopped or killed and resumed is the run that nothing interrupted, to the last digit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fr3e_jax.configuration import ConfigError, to_yaml
from fr3e_jax.learning.learner import abstract_learner
from fr3e_jax.loop.session import open_session
from fr3e_jax.loop.train import train
from fr3e_jax.runs.checkpoints import Checkpointer, flatten_arrays
from fr3e_jax.runs.metrics import read_metrics, without_timing

ROOT = Path(__file__).resolve().parents[2]


def reader(path: Path) -> Checkpointer:
    return Checkpointer(path / "checkpoints", keep_last=1, keep_best=0, best_metric="", read_only=True)


def newest(path: Path, session) -> tuple[dict, dict]:
    """Arrays and host state of the newest checkpoint."""
    with reader(path) as checkpoints:
        programs, critic = session.model.train_programs(session.config), session.model.critic_programs(session.config)
        held = abstract_learner(programs, critic, reference=session.config.kl.coefficient > 0)
        return checkpoints.restore(checkpoints.latest_step(), held)


def without_clocks(host: dict) -> dict:
    counters = {name: state["counters"] for name, state in host["ledger"].items()}
    return host | {"ledger": counters}


def assert_same_run(found: Path, wanted: Path, session) -> None:
    metrics, wanted_metrics = (
        [without_timing(record) for record in read_metrics(path / "metrics.jsonl")] for path in (found, wanted)
    )
    assert metrics == wanted_metrics
    files, wanted_files = (
        {path.name: path.read_bytes() for path in (run / "rollouts").iterdir()} for run in (found, wanted)
    )
    assert files == wanted_files
    (arrays, host), (wanted_arrays, wanted_host) = newest(found, session), newest(wanted, session)
    flat, wanted_flat = flatten_arrays(arrays), flatten_arrays(wanted_arrays)
    assert flat.keys() == wanted_flat.keys()
    for name, array in flat.items():
        assert np.asarray(array).tobytes() == np.asarray(wanted_flat[name]).tobytes(), name
    assert without_clocks(host) == without_clocks(wanted_host)
    summaries = [json.loads((path / "summary.json").read_text()) for path in (found, wanted)]
    for summary in summaries:
        del summary["cpu_seconds"], summary["wall_seconds"], summary["compilations"]
    assert summaries[0] == summaries[1]


@pytest.fixture(scope="module")
def resumed_run(tmp_path_factory, tiny_run) -> Path:
    """Two steps, then two more after a resume; the checkpoint between them holds a partial batch."""
    path = tmp_path_factory.mktemp("resumed") / "run"
    assert train(tiny_run.config(training__max_steps=2, runtime__run_dir=str(path))) == 0
    with reader(path) as checkpoints:
        assert checkpoints.host_state(2)["partial_batch"], "this case must carry rollouts over the checkpoint"
    # The remains of a process killed in step 3, after the checkpoint.
    with open(path / "metrics.jsonl", "a") as metrics:
        metrics.write('{"step": 3, "kind": "train", "reward/mean": 9}\n{"step": 3, "kind": "ev')
    (path / "rollouts" / "step_000003.jsonl.gz").write_bytes(b"torn")
    assert train(tiny_run.config(training__max_steps=4), path, resume=True) == 0
    return path


def test_a_resumed_run_equals_an_uninterrupted_one(resumed_run, finished_run, session):
    assert_same_run(resumed_run, finished_run, session)


@pytest.mark.slow
def test_critic_reference_and_plateau_are_restored(tmp_path, tiny_run):
    """PPO with a divergence: the checkpoint also holds critic, reference and the rewards since the last reset."""
    settings = {
        "explore__enabled": False,
        "advantage__base_estimator": "gae",
        "critic__warmup_steps": 1,
        "kl__coefficient": 0.1,
        "kl__reset_every": 3,
        "kl__reset_on_plateau": 2,
        "shaping__steps": ["perplexity", "clip_cov"],
        "shaping__clip_cov__share": 0.1,
        "loss__ratio": "token",
    }
    config = lambda steps, path: tiny_run.config(training__max_steps=steps, runtime__run_dir=str(path), **settings)
    wanted, found = tmp_path / "whole", tmp_path / "resumed"
    assert train(config(4, wanted)) == 0
    assert train(config(2, found)) == 0
    with reader(found) as checkpoints:
        state = checkpoints.host_state(2)["reference_resets"]
    assert state["best_reward"] is not None
    assert train(config(4, found), found, resume=True) == 0
    session = open_session(config(4, found))
    assert_same_run(found, wanted, session)
    arrays, _ = newest(found, session)
    moved = lambda left, right: any((np.asarray(left[k]) != np.asarray(right[k])).any() for k in left)
    policy, reference, critic = (
        flatten_arrays(x) for x in (arrays["params"], arrays["reference"], arrays["critic"]["params"]["network"])
    )
    assert moved(policy, reference) and moved(critic, policy)


def test_a_finished_run_resumed_stays_as_it_is(resumed_run, tiny_run, session, finished_run):
    """The remains of a fifth step, from a longer run, belong to no checkpoint."""
    (resumed_run / "rollouts" / "step_000005.jsonl.gz").write_bytes(b"torn")
    assert train(tiny_run.config(training__max_steps=4), resumed_run, resume=True) == 0
    with reader(resumed_run) as checkpoints:
        assert checkpoints.latest_step() == 4
    assert_same_run(resumed_run, finished_run, session)


@pytest.mark.slow
def test_the_archive_is_part_of_a_checkpoint(tmp_path, tiny_run):
    """Revisited bases come from earlier steps: without the archive a resumed run would sample others."""
    settings = {
        "explore__archive_size": 4,
        "explore__archive_revisits": 2,
        "explore__archive_threshold": 0.0,
        "explore__archive_max_success_rate": 1.0,
        "evaluation__every": 1,
        "checkpoint__keep_last": 9,
    }
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(tiny_run.config(training__max_steps=3, **settings), whole) == 0
    assert train(tiny_run.config(training__max_steps=1, **settings), parts) == 0
    assert train(tiny_run.config(training__max_steps=3, **settings), parts, resume=True) == 0
    assert_same_run(parts, whole, open_session(tiny_run.config(**settings)))
    with reader(whole) as checkpoints:
        assert checkpoints.host_state(1)["archive"]["entries"]


def test_sigterm_finishes_the_step_saves_and_exits_with_0(tmp_path, tiny_run, monkeypatch, finished_run, session):
    path = tmp_path / "run"
    monkeypatch.setenv("FR3E_TEST_SIGNAL", "SIGTERM 30")
    assert train(tiny_run.config(), path) == 0
    with reader(path) as checkpoints:
        assert checkpoints.all_steps() == [1]
    monkeypatch.delenv("FR3E_TEST_SIGNAL")
    assert train(tiny_run.config(), path, resume=True) == 0
    assert_same_run(path, finished_run, session)


def test_sigterm_in_the_last_step_does_not_wait_for_the_last_evaluation(tmp_path, tiny_run, monkeypatch):
    path, config = tmp_path / "run", tiny_run.config(training__max_steps=1)
    monkeypatch.setenv("FR3E_TEST_SIGNAL", "SIGTERM 30")
    assert train(config, path) == 0
    assert not (path / "summary.json").exists()
    monkeypatch.delenv("FR3E_TEST_SIGNAL")
    assert train(config, path, resume=True) == 0
    assert [(r["step"], r["kind"]) for r in read_metrics(path / "metrics.jsonl")] == [
        (0, "eval"),
        (1, "train"),
        (1, "eval"),
    ]
    assert json.loads((path / "summary.json").read_text())["steps"] == 1


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_lost(resumed_run, tiny_run):
    before = contents(resumed_run)
    with pytest.raises(ConfigError) as caught:
        train(tiny_run.config(model__hidden_size=32, training__max_steps=9), resumed_run, resume=True)
    message = str(caught.value)
    assert "is of another model or optimizer" in message
    assert "params/embedding: found float32[24,16], expected float32[24,32]" in message
    assert "resume with the config.yaml of its run" in message
    assert contents(resumed_run) == before


def test_resuming_a_directory_without_a_run_is_a_config_error(tmp_path, tiny_run):
    with pytest.raises(ConfigError, match="holds no run"):
        train(tiny_run.config(), tmp_path / "nothing", resume=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="already holds a run"):
        train(tiny_run.config(), tmp_path / "run")


# -- processes that are told to stop, or killed ------------------------------------------------------------------------


class Process:
    """``fr3e train`` on the tiny recipe in processes of its own."""

    def __init__(self, folder: Path, tiny_run):
        self.run_dir, self.recipe = folder / "run", folder / "recipe.yaml"
        self.recipe.write_text(to_yaml(tiny_run.config(runtime__run_dir=str(self.run_dir), runtime__console="plain")))
        self.log = folder / "log.txt"

    def start(self, *arguments: str, signal_at: str = "") -> subprocess.Popen:
        command = [sys.executable, "-m", "fr3e_jax", "train", str(self.recipe), *arguments]
        environment = os.environ | {"FR3E_TEST_SIGNAL": signal_at, "PYTHONPATH": str(ROOT)}
        with open(self.log, "a") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def run(self, *arguments: str, signal_at: str = "") -> int:
        return self.start(*arguments, signal_at=signal_at).wait(timeout=300)

    def kill_after_line(self, step: int, *arguments: str) -> None:
        """Send SIGKILL as soon as the metrics of a step appear: its checkpoint is being written."""
        process, metrics = self.start(*arguments), self.run_dir / "metrics.jsonl"
        while process.poll() is None:
            if metrics.exists() and f'{{"step": {step}, "kind": "train"' in metrics.read_text():
                process.kill()
            time.sleep(0.001)
        assert process.wait() == -signal.SIGKILL, self.log.read_text()


@pytest.fixture
def process(tmp_path, tiny_run) -> Process:
    return Process(tmp_path, tiny_run)


@pytest.mark.slow
def test_a_process_told_to_stop_exits_with_0_and_says_how_to_continue(process, finished_run, session):
    """The signal comes while the start is evaluated: the first step is still made."""
    assert process.run(signal_at="SIGTERM 5") == 0, process.log.read_text()
    assert "SIGTERM: step 1 is finished and saved; continue with" in process.log.read_text()
    with reader(process.run_dir) as checkpoints:
        assert checkpoints.all_steps() == [1]
    assert not (process.run_dir / "summary.json").exists()
    assert process.run("--resume") == 0, process.log.read_text()
    assert_same_run(process.run_dir, finished_run, session)


@pytest.mark.slow
@pytest.mark.parametrize("graded", [5, 40], ids=["while evaluating the start", "while exploring"])
def test_a_run_killed_before_any_checkpoint_starts_again(process, finished_run, session, graded):
    assert process.run(signal_at=f"SIGKILL {graded}") == -signal.SIGKILL
    with reader(process.run_dir) as checkpoints:
        assert checkpoints.latest_step() is None
    assert process.run("--resume") == 0, process.log.read_text()
    assert_same_run(process.run_dir, finished_run, session)


@pytest.mark.slow
def test_a_run_killed_again_and_again_equals_an_uninterrupted_one(process, finished_run, session):
    """Every process dies at its 60th graded response, wherever in a step or an evaluation that is."""
    codes = [process.run(signal_at="SIGKILL 60")]
    while codes[-1] == -signal.SIGKILL and len(codes) < 5:
        codes.append(process.run("--resume", signal_at="SIGKILL 60"))
    assert codes.count(-signal.SIGKILL) >= 2, process.log.read_text()
    if codes[-1]:
        assert process.run("--resume") == 0, process.log.read_text()
    assert_same_run(process.run_dir, finished_run, session)


@pytest.mark.slow
def test_a_run_killed_while_writing_checkpoints_equals_an_uninterrupted_one(process, finished_run, session):
    process.kill_after_line(1)
    process.kill_after_line(2, "--resume")
    process.kill_after_line(4, "--resume")
    assert process.run("--resume") == 0, process.log.read_text()
    assert_same_run(process.run_dir, finished_run, session)
