"""A resumed run is the run that nothing interrupted, to the last digit; tests/campaign kills and stops processes."""

from __future__ import annotations

import copy
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from method_settings import RETURNS
from run_comparison import assert_same_run, reader, without_clocks
from stops import nth, run_with_stops

from fr3e_jax.configuration import ConfigError
from fr3e_jax.loop.callbacks import Callback
from fr3e_jax.loop.evaluate import evaluate
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.state import TrainingState
from fr3e_jax.loop.train import train
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.runs.run_lock import RunLock
from fr3e_jax.session.session import open_session


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


def test_every_part_of_the_host_state_comes_back(finished_run, session):
    with reader(finished_run) as checkpoints:
        host = checkpoints.host_state(4)
    host["reference_resets"] = {"best_reward": 0.5, "steps_without_gain": 3}
    learner, kept_bases = SimpleNamespace(updates=host["updates"]), KeptBases(session.config.returns)
    state = TrainingState(learner=learner, prompts=session.prompt_stream(), kept_bases=kept_bases)
    state.load_host_state(copy.deepcopy(host))
    opened = SimpleNamespace(verb=host["verb"], identity=host["identity"], session=session)
    found = json.loads(json.dumps(state.as_json(state.host_state(opened))))
    assert without_clocks(found) == without_clocks(host)


def test_a_finished_run_resumed_stays_as_it_is(resumed_run, tiny_run, session, finished_run):
    """The remains of a fifth step, from a longer run, belong to no checkpoint."""
    (resumed_run / "rollouts" / "step_000005.jsonl.gz").write_bytes(b"torn")
    assert train(tiny_run.config(training__max_steps=4), resumed_run, resume=True) == 0
    with reader(resumed_run) as checkpoints:
        assert checkpoints.latest_step() == 4
    assert_same_run(resumed_run, finished_run, session)


@pytest.mark.slow
def test_replayed_successes_and_success_rates_are_part_of_a_checkpoint(tmp_path, tiny_run):
    settings = {"explore__enabled": False, "rollout__replay_share": 0.5, "loss__importance_cap": 2.0}
    settings |= {"rollout__allocation": "knapsack", "data__train_problems": 3}
    settings |= {"training__batch_rollouts": 8, "evaluation__every": 1, "checkpoint__keep_last": 9}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(tiny_run.config(training__max_steps=3, **settings), whole) == 0
    assert train(tiny_run.config(training__max_steps=1, **settings), parts) == 0
    assert train(tiny_run.config(training__max_steps=3, **settings), parts, resume=True) == 0
    assert_same_run(parts, whole, open_session(tiny_run.config(**settings)))
    with reader(whole) as checkpoints:
        assert checkpoints.host_state(1)["replay"]["successes"] and checkpoints.host_state(1)["success_rates"]
    steps = [record for record in read_metrics(whole / "metrics.jsonl") if record["kind"] == "train"]
    assert steps[-1]["replay/asked"] > 0 and steps[-1]["logprob_gap/max"] < 1e-5, "of fresh rollouts alone"
    assert steps[-1]["sampler_ratio/carried"] > 0.001, "old log-probs are not those of now"
    assert any(record.get("prompts/most_rollouts", 0) > 4 for record in steps), "more than rollouts_per_prompt"


@pytest.mark.slow
def test_kept_bases_beyond_a_lower_cap_leave(tmp_path, tiny_run):
    settings = RETURNS | {
        "training__surplus": "drop",
        "training__batch_rollouts": 6,
        "training__mini_batch_rollouts": 4,
    }
    settings |= {"returns__size": 40, "returns__failures": True, "rollout__reject_degenerate": False, "seed": 1}
    settings |= {"rollout__prompts_per_round": 2, "evaluation__start": False, "evaluation__every": 0}
    assert train(tiny_run.config(**settings, evaluation__end=False, training__max_steps=4), tmp_path / "run") == 0
    with reader(tmp_path / "run") as checkpoints:
        bases = checkpoints.host_state(4)["kept_bases"]["bases"]
    assert any(len(base["token_ids"]) > 4 for base in bases)
    settings |= {"rollout__max_response_tokens": 4, "evaluation__end": False, "training__max_steps": 10}
    assert train(tiny_run.config(**settings), tmp_path / "run", resume=True) == 0


def test_sigterm_in_the_last_step_does_not_wait_for_the_last_evaluation(tmp_path, tiny_run, monkeypatch):
    path, config = tmp_path / "run", tiny_run.config(training__max_steps=1)
    run_with_stops(path, config, monkeypatch, [nth("update", 1)])
    assert [(r["step"], r["kind"]) for r in read_metrics(path / "metrics.jsonl")] == [
        (0, "eval"),
        (1, "train"),
        (1, "eval"),
    ]
    assert json.loads((path / "summary.json").read_text())["steps"] == 1


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_run_directory_that_disappears_ends_the_run_with_1(tmp_path, tiny_run, monkeypatch, capsys):
    path = tmp_path / "run"

    def moving(*arguments):
        if (path / "rollouts").exists():
            path.rename(tmp_path / "elsewhere")
        return evaluate(*arguments)

    monkeypatch.setattr("fr3e_jax.loop.run.evaluate", moving)
    assert train(tiny_run.config(), path) == 1
    assert f"stopped at step 2: {path} was deleted or moved" in capsys.readouterr().err


def test_a_run_directory_in_use_is_refused(tmp_path, tiny_run, finished_run):
    before = contents(finished_run)
    with RunLock() as lock:
        lock.acquire(finished_run)
        with pytest.raises(ConfigError, match="is in use by the run of process"):
            train(tiny_run.config(), finished_run, resume=True)
    assert contents(finished_run) == before


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
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "kind": "train"}\n')
    with pytest.raises(ConfigError, match="already holds a run"):
        train(tiny_run.config(), tmp_path / "run")


def test_a_checkpoint_is_due_after_minutes_as_well_as_after_steps(tmp_path, tiny_run, monkeypatch):
    clock, saved = [0.0], []

    class SevenMinutesAStep(Callback):
        def on_step(self, step, metrics):
            clock[0] += 7 * 60

        def on_checkpoint(self, step):
            saved.append(step)

    monkeypatch.setattr("fr3e_jax.loop.run.time", SimpleNamespace(monotonic=lambda: clock[0]))
    config = tiny_run.config(checkpoint__every=3, checkpoint__minutes=10, evaluation__every=0, training__max_steps=5)
    assert train(config, tmp_path / "run", callbacks=[SevenMinutesAStep()]) == 0
    assert saved == [2, 3, 5], "14 minutes, a third step, and 14 minutes that are the end as well"


@pytest.mark.parametrize(("evaluation", "saved"), [(0, []), (1, [2]), (2, [2, 4])], ids=["of the start", "due", "last"])
def test_a_signal_in_an_evaluation_is_honoured_at_its_next_chunk_and_the_evaluation_repeated(
    tmp_path, tiny_run, monkeypatch, capsys, finished_run, session, evaluation, saved
):
    path, calls = tmp_path / "run", []
    config = tiny_run.config(checkpoint__every=10, checkpoint__keep_last=1, checkpoint__keep_best=9)

    def interrupted(*arguments):
        if len(calls) == evaluation:
            os.kill(os.getpid(), signal.SIGHUP)
        calls.append(arguments)
        return evaluate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("fr3e_jax.loop.run.evaluate", interrupted)
        assert train(config, path) == 0
    with reader(path) as checkpoints:
        assert checkpoints.all_steps() == saved
    assert len(calls) == evaluation + 1, "nothing follows the interrupted evaluation"
    assert not (path / "summary.json").exists()
    for _ in range(2):  # the second time, nothing is left to do or to record
        assert train(tiny_run.config(checkpoint__keep_last=1, checkpoint__keep_best=9), path, resume=True) == 0
        assert_same_run(path, finished_run, session)
    evaluated = read_metrics(path / "metrics.jsonl", kind="eval")
    with reader(path) as checkpoints:
        assert checkpoints.all_steps() == [r["step"] for r in evaluated if r["step"]], "repeated evaluations rank, too"
