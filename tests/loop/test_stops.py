"""A run that is told to stop inside a step keeps what is sampled, and its continuation is the run without a stop."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import jax
import pytest
from method_settings import ARCHIVE, CALLING, PPO, RETURNS
from run_comparison import assert_same_run, reader
from stops import Watched, after, nth

from fr3e_jax.loop import partial_step
from fr3e_jax.loop.train import train
from fr3e_jax.rollouts.episodes import EpisodeCalls
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.runs.packed_values import Packer
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
    }
)
MANY = {"rollout__prompts_per_round": 1, "training__micro_batch_tokens": 64, "training__max_steps": 2}
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
BRANCHES = {
    "tools__branching": True,
    "tools__initial_rollouts": 2,
    "tools__branch_probability": 1.0,
}
BRANCHING = TOOLS | PLAIN | BRANCHES


def stopped_and_continued(path: Path, config, monkeypatch, stops) -> tuple[Counter, list[list[str]]]:
    """Run to the end through a stop at each of ``stops``; the work of all processes, and their safe points."""
    work, points = Counter(), []
    for number, stop in enumerate([*stops, None]):
        with monkeypatch.context() as patch:
            watched = Watched(patch, stop or (lambda points: False))
            assert train(config, path, resume=number > 0) == 0
        work += watched.work
        points.append(watched.points)
        assert (path / "summary.json").exists() == (stop is None), f"the run did not stop: {points[-1]}"
    return work, points


@pytest.fixture(scope="module")
def work_of_finished_run(tmp_path_factory, tiny_run) -> Counter:
    """What the devices do in the run of the fixture ``finished_run``."""
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        assert train(tiny_run.config(), tmp_path_factory.mktemp("counted") / "run") == 0
    return watched.work


@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("chunk", 6),  # of First Return
        pytest.param("chunk", 9, marks=pytest.mark.slow),  # before the first one of Explore
        ("chunk", 14),
        pytest.param("round", 2, marks=pytest.mark.slow),
        pytest.param("sampled", 1, marks=pytest.mark.slow),
        pytest.param("scoring", 2, marks=pytest.mark.slow),
        pytest.param("micro_batch", 1, marks=pytest.mark.slow),
        ("micro_batch", 4),
        ("mini_batch", 2),
    ],
)
def test_a_run_stopped_inside_a_step_repeats_nothing_and_ends_equal(
    tmp_path, tiny_run, monkeypatch, capsys, finished_run, session, work_of_finished_run, point, number
):
    path = tmp_path / "run"
    work, points = stopped_and_continued(
        path, tiny_run.config(runtime__console="plain"), monkeypatch, [nth(point, number)]
    )
    assert points[0][-1] == point, "the run goes on after the stop"
    assert "SIGTERM: stopped inside step" in capsys.readouterr().out
    assert_same_run(path, finished_run, session)
    assert work["decode_chunk"] == work_of_finished_run["decode_chunk"], "tokens were sampled twice"
    assert work["apply"] == work_of_finished_run["apply"], "an update was made twice"
    assert not (path / "partial_step").exists()


@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        pytest.param(
            CRITIC,
            [nth("micro_batch", 2), after("mini_batch", 2), after("mini_batch", 3)],
            marks=pytest.mark.slow,
            id="ppo",
        ),
        pytest.param(
            CRITIC, [nth("scoring", 3), after("micro_batch", 8)], marks=pytest.mark.slow, id="ppo, other points"
        ),
        pytest.param(
            MANY,
            [nth("round", 2), after("chunk", 6), after("micro_batch", 2), after("mini_batch", 2)],
            id="many parts",
        ),
        pytest.param(
            MANY | {"training__row_shapes": 1, "rollout__cache_sizes": 1},
            [nth("micro_batch", 3), after("mini_batch", 1)],
            marks=pytest.mark.slow,
            id="planned shapes",
        ),
        pytest.param(SHORT | ARCHIVE, [nth("chunk", 12, step=2), after("chunk", 1), after("chunk", 4)], id="archive"),
        pytest.param(SHORT | RETURNS, [nth("chunk", 3, step=2), after("chunk", 3), after("round", 2)], id="returns"),
        pytest.param(TOOLS | SHORT, [nth("chunk", 3), after("chunk", 2), after("chunk", 9)], id="tools"),
        pytest.param(BRANCHING, [nth("chunk", 3), after("chunk", 5), after("chunk", 4)], id="branching"),
        pytest.param(
            ENVIRONMENT | SHORT,
            [nth("chunk", 16), after("chunk", 2), after("chunk", 4)],
            marks=pytest.mark.slow,
            id="environment",
        ),
        pytest.param(
            ENVIRONMENT | RETURNS | SHORT,
            [nth("chunk", 6), after("chunk", 4), nth("chunk", 3)],
            marks=pytest.mark.slow,
            id="returns in an environment",
        ),
        pytest.param(
            ENVIRONMENT | BRANCHES | PLAIN,
            [nth("chunk", 4), after("chunk", 5), after("chunk", 3)],
            marks=pytest.mark.slow,
            id="branching in an environment",
        ),
    ],
)
def test_methods_go_on_where_they_were_stopped(tmp_path, tiny_run, monkeypatch, settings, stops):
    """Several stops in a row, in a critic's updates and a second epoch, in rounds with state of their own, in calls."""
    config = tiny_run.config(**settings)
    with monkeypatch.context() as patch:
        whole = Watched(patch)
        assert train(config, tmp_path / "whole") == 0
    work, _ = stopped_and_continued(tmp_path / "run", config, monkeypatch, stops)
    assert_same_run(tmp_path / "run", tmp_path / "whole", open_session(config))
    assert work == whole.work


def test_a_run_stopped_between_two_turns_plays_the_turns_before_again_and_ends_equal(tmp_path, tiny_run, monkeypatch):
    """Without branches, an environment is given earlier turns only where a run goes on in mid-episode."""
    config, again = tiny_run.config(**ENVIRONMENT | PLAIN, training__batch_rollouts=10), []
    replay, made, closed = EpisodeCalls._again, [], []
    counted = lambda own, key, turns: again.append(len(turns)) or replay(own, key, turns)
    monkeypatch.setattr(EpisodeCalls, "_again", counted)
    begin, close = Episode.__init__, Episode.close
    monkeypatch.setattr(Episode, "__init__", lambda own, *given: made.append(own) or begin(own, *given))
    monkeypatch.setattr(Episode, "close", lambda own: closed.append(own) or close(own))
    with monkeypatch.context() as patch:
        whole = Watched(patch)
        assert train(config, tmp_path / "whole") == 0
    assert again and not any(again)
    stops = [nth("chunk", 4), after("chunk", 1), after("chunk", 2)]
    work, _ = stopped_and_continued(tmp_path / "run", config, monkeypatch, stops)
    assert any(again)
    for thread in threading.enumerate():  # closing episodes that have ended
        if thread.name == "fr3e-call":
            thread.join(60)
    assert Counter(map(id, closed)) == Counter(map(id, made)), "each environment is closed once, at a stop, too"
    assert_same_run(tmp_path / "run", tmp_path / "whole", open_session(config))
    assert work == whole.work


one_device = pytest.mark.skipif(jax.device_count() > 1, reason="sampling ahead is refused on several devices")
AHEAD = {"rollout__async_steps": 1, "loss__importance_cap": 2.0, "evaluation__every": 3, "training__max_steps": 4}


@one_device
@pytest.mark.parametrize(
    "stops",
    [
        pytest.param([nth("micro_batch", 3), after("micro_batch", 2), after("step", 1)], id="in updates, after a step"),
        pytest.param([nth("sampled", 2), after("sampled", 1)], id="after sampling"),
        pytest.param([nth("round", 4), after("chunk", 3)], marks=pytest.mark.slow, id="in rounds"),
        pytest.param([nth("chunk", 30), nth("chunk", 20)], marks=pytest.mark.slow, id="in chunks"),
    ],
)
def test_a_stop_while_rollouts_are_sampled_ahead_repeats_nothing(tmp_path, tiny_run, monkeypatch, stops):
    config = tiny_run.config(**AHEAD)
    with monkeypatch.context() as patch:
        whole = Watched(patch)
        assert train(config, tmp_path / "whole") == 0
    work, _ = stopped_and_continued(tmp_path / "run", config, monkeypatch, stops)
    assert_same_run(tmp_path / "run", tmp_path / "whole", open_session(config))
    assert work == whole.work
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]


@one_device
def test_a_kill_after_a_stop_ahead_goes_on_from_the_state_before_the_batch(tmp_path, tiny_run, monkeypatch):
    """The step that was stopped is finished and saved while the next batch, sampled in part by the first process, is
    not: its checkpoint must begin before that batch."""
    config, path = tiny_run.config(**AHEAD), tmp_path / "run"
    assert train(config, tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        Watched(patch, nth("micro_batch", 3))
        assert train(config, path) == 0
    done = len(read_metrics(path / "metrics.jsonl", kind="train"))

    def killed(points):
        if points[-1] == "step":
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        Watched(patch, killed)
        train(config, path, resume=True)
    with reader(path) as checkpoints:
        assert checkpoints.latest_step() == done + 1
    assert train(config, path, resume=True) == 0
    assert_same_run(path, tmp_path / "whole", open_session(config))


def stopped_run(path: Path, config, monkeypatch, stop) -> None:
    with monkeypatch.context() as patch:
        Watched(patch, stop)
        assert train(config, path) == 0
    assert (path / "partial_step").is_dir()


@pytest.mark.parametrize("damage", ["values", "arrays", "half"])
def test_a_damaged_partial_step_is_named_and_the_step_is_made_again(
    tmp_path, tiny_run, monkeypatch, capsys, finished_run, session, damage
):
    path = tmp_path / "run"
    stopped_run(path, tiny_run.config(), monkeypatch, nth("micro_batch", 4))
    if damage == "values":
        (file,) = (path / "partial_step").glob("values_*.bin")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "arrays":
        for file in (path / "partial_step" / "arrays" / "1" / "arrays" / "d").iterdir():
            file.write_bytes(file.read_bytes()[:-40])
    else:  # a kill came while it was written
        (path / "partial_step" / "arrays" / "1").rename(path / "partial_step" / "arrays" / "1.orbax-checkpoint-tmp")
    assert train(tiny_run.config(), path, resume=True) == 0
    said = capsys.readouterr().err
    assert ("partial_step" in said and "samples the step again" in said) == (damage != "half"), said
    assert_same_run(path, finished_run, session)
    assert not (path / "partial_step").exists()


def test_a_partial_step_of_other_settings_is_not_used(tmp_path, tiny_run, monkeypatch, capsys):
    path = tmp_path / "run"
    stopped_run(path, tiny_run.config(**PLAIN), monkeypatch, nth("chunk", 3))
    config = tiny_run.config(**PLAIN | {"rollout__max_response_tokens": 8})
    assert train(config, path, resume=True) == 0
    assert (
        "is not used, because settings have changed (rollout.max_response_tokens: 10 in the" in capsys.readouterr().err
    )
    assert train(config, tmp_path / "whole") == 0
    assert_same_run(path, tmp_path / "whole", open_session(config))


def test_lanes_laid_out_otherwise_begin_the_round_anew(tmp_path, tiny_run, monkeypatch, capsys):
    """The rounds before it are kept. Settings of lanes count as others do, so the layout itself is changed here."""
    path, config = tmp_path / "run", tiny_run.config(**SHORT)
    stopped_run(path, config, monkeypatch, nth("chunk", 14))
    with monkeypatch.context() as patch:
        patch.setattr(partial_step, "_layout", lambda engine: ["another mesh"])
        watched = Watched(patch)
        assert train(config, path, resume=True) == 0
    assert "the round of the stop is sampled again" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        whole = Watched(patch)
        assert train(config, tmp_path / "whole") == 0
    assert_same_run(path, tmp_path / "whole", open_session(config))
    assert watched.work["decode_chunk"] < whole.work["decode_chunk"]


def test_a_second_signal_does_not_spoil_the_save_and_a_second_ctrl_c_ends_at_once(tmp_path, tiny_run, monkeypatch):
    config, path = tiny_run.config(**PLAIN), tmp_path / "run"
    assert train(config, tmp_path / "whole") == 0
    write = Packer.write

    def told_again(name):
        def written(*arguments):
            os.kill(os.getpid(), name)
            return write(*arguments)

        return written

    with monkeypatch.context() as patch:
        patch.setattr(Packer, "write", told_again(signal.SIGTERM))
        stopped_run(path, config, monkeypatch, nth("chunk", 3))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="second Ctrl-C"):
        patch.setattr(Packer, "write", told_again(signal.SIGINT))
        Watched(patch, after("chunk", 3), "SIGINT")
        train(config, path, resume=True)
    assert train(config, path, resume=True) == 0, "the first partial step is still whole"
    assert_same_run(path, tmp_path / "whole", open_session(config))
