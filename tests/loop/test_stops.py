"""A run that is told to stop gives up the step under way, and its continuation is the run without a stop."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from method_settings import CALLING, PPO, RETURNS
from run_comparison import assert_same_run, reader
from stops import Watched, after_update, nth, run_with_stops

from fr3e_jax.loop.callbacks import Callback
from fr3e_jax.loop.train import train
from fr3e_jax.runs.checkpoints import Checkpointer, CheckpointFailed
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.session.session import open_session
from fr3e_jax.tools.environment import Episode

SHORT = {"evaluation__every": 0, "training__max_steps": 2}
PLAIN = SHORT | {"explore__enabled": False, "training__surplus": "drop"}
CRITIC = (
    PLAIN
    | PPO
    | {
        "critic__warmup_steps": 0,
        "advantage__normalise_batch": True,
        "training__epochs": 2,
        "kl__reset_every": 2,
        "training__max_steps": 3,
    }
)
THREE_STEPS = SHORT | {"training__max_steps": 3}
TOOLS = CALLING | {"rollout__reject_degenerate": False}
ENVIRONMENT = {
    "rollout__reject_degenerate": False,
    "rollout__max_response_tokens": 16,
    "environment__kind": f"{Path(__file__).parents[1] / 'fixtures' / 'scripted_environment.py'}:Slow",
    "environment__turn_end": "5",
    "environment__observation": "({observation}3=",
    "environment__max_turns": 3,
    "environment__max_observation_tokens": 3,
}


@pytest.mark.parametrize(
    ("stop", "saved", "said"),
    [
        (nth("first_return", 2), [], "step 1 is given up, nothing was to be saved; continue with fr3e train"),
        (after_update("explore", 3), [1], "step 2 is given up, step 1 is saved; continue with fr3e train"),
        (nth("update", 3), [2], "SIGTERM: step 2 is saved; continue with fr3e train"),
    ],
)
def test_a_stopped_run_saves_the_last_finished_step_and_its_continuation_is_equal(
    tmp_path, tiny_run, monkeypatch, capsys, finished_run, session, stop, saved, said
):
    path, config = tmp_path / "run", tiny_run.config(runtime__console="plain", checkpoint__every=9)
    with monkeypatch.context() as patch:
        watched = Watched(patch, stop)
        assert train(config, path) == 0
    with reader(path) as checkpoints:
        assert checkpoints.all_steps() == saved
    assert said in capsys.readouterr().out
    assert stop(watched.moments) or saved == [2], "no chunk follows the one in which the signal comes"
    assert train(tiny_run.config(), path, resume=True) == 0
    assert_same_run(path, finished_run, session)


@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        pytest.param(CRITIC, [nth("update", 2), after_update("first_return", 2)], marks=pytest.mark.slow, id="ppo"),
        pytest.param(
            THREE_STEPS | RETURNS,
            [nth("return", 3), after_update("return", 1)],
            marks=pytest.mark.slow,
            id="returns",
        ),
        pytest.param(TOOLS | SHORT, [nth("update", 1), nth("first_return", 12)], marks=pytest.mark.slow, id="tools"),
        pytest.param(ENVIRONMENT | SHORT, [nth("update", 2), nth("explore", 4)], id="environment"),
        pytest.param(
            ENVIRONMENT | RETURNS | SHORT,
            [nth("update", 1), nth("first_return", 20)],
            marks=pytest.mark.slow,
            id="played returns",
        ),
    ],
)
def test_methods_with_state_of_their_own_go_on_from_the_last_step(tmp_path, tiny_run, monkeypatch, settings, stops):
    config = tiny_run.config(**settings)
    assert train(config, tmp_path / "whole") == 0
    run_with_stops(tmp_path / "run", config, monkeypatch, stops)
    assert_same_run(tmp_path / "run", tmp_path / "whole", open_session(config))
    if config.returns.size and not config.environment.kind:
        with reader(tmp_path / "whole") as checkpoints:
            assert checkpoints.host_state(1)["kept_bases"]["bases"]
        last = read_metrics(tmp_path / "whole" / "metrics.jsonl", kind="train")[-1]
        assert last["returns/visits"], "the last step returns to a success of an earlier one"


def test_a_stop_closes_every_environment_once(tmp_path, tiny_run, monkeypatch):
    made, closed = [], []
    begin, close = Episode.__init__, Episode.close
    monkeypatch.setattr(Episode, "__init__", lambda episode, *rest: made.append(episode) or begin(episode, *rest))
    monkeypatch.setattr(Episode, "close", lambda episode: closed.append(episode) or close(episode))
    with monkeypatch.context() as patch:
        Watched(patch, nth("first_return", 4))
        assert train(tiny_run.config(**ENVIRONMENT | PLAIN), tmp_path / "run") == 0
    for thread in threading.enumerate():  # closing episodes that have ended
        if thread.name == "fr3e-call":
            thread.join(60)
    assert made and Counter(map(id, closed)) == Counter(map(id, made))


def test_a_callback_stops_the_run_after_its_step(tmp_path, tiny_run):
    class Enough(Callback):
        def on_step(self, step, metrics):
            return step == 2

    assert train(tiny_run.config(checkpoint__every=9, evaluation__every=0), tmp_path / "run", callbacks=[Enough()]) == 0
    with reader(tmp_path / "run") as checkpoints:
        assert checkpoints.all_steps() == [2]


def test_a_second_signal_ends_a_stop_at_once_and_the_checkpoint_before_it_counts(tmp_path, tiny_run, monkeypatch):
    config, path = tiny_run.config(**PLAIN | {"training__max_steps": 3, "checkpoint__every": 9}), tmp_path / "run"
    assert train(config, tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        Watched(patch, after_update("first_return", 3))
        assert train(config, path) == 0
    with reader(path) as checkpoints:
        assert checkpoints.all_steps() == [1]
    save = Checkpointer.save

    def told_again(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return save(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="SIGTERM after SIGINT"):
        patch.setattr("fr3e_jax.runs.signals.SECONDS_APART", 0.0)
        patch.setattr(Checkpointer, "save", told_again)
        Watched(patch, nth("update", 1), "SIGINT")
        train(config, path, resume=True)
    with reader(path) as checkpoints:
        assert checkpoints.all_steps() == [1]
    assert train(config, path, resume=True) == 0
    assert_same_run(path, tmp_path / "whole", open_session(config))


def test_a_stop_whose_save_fails_in_the_background_is_a_failure(tmp_path, tiny_run, monkeypatch, capsys):
    """As on a disk that fills up: nothing is said to be saved that is not."""
    saved, save = [], Checkpointer.save

    def save_and_note(self, *arguments, **options):
        save(self, *arguments, **options)
        saved.append(self)

    def wait(self):
        if saved:
            raise CheckpointFailed("saving the last checkpoint in the background failed: No space left on device")

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        Watched(patch, after_update("first_return", 1))
        patch.setattr(Checkpointer, "save", save_and_note)
        patch.setattr(Checkpointer, "wait", wait)
        assert train(tiny_run.config(**PLAIN, checkpoint__every=9, runtime__console="plain"), path) == 1
    assert saved and "No space left" in capsys.readouterr().err
    assert json.loads((path / "status.json").read_text())["state"] == "failed"
