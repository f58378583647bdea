"""A run that is told to stop inside a step keeps what is sampled, and its continuation is the run without a stop."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jax
import pytest
from run_comparison import assert_same_run, reader
from tiny_runs import SCRIPTED
from stops import Watched, after, nth

from fr3e_jax.loop.session import open_session
from fr3e_jax.loop.train import train

SHORT = {"evaluation__every": 0, "training__max_steps": 2}
PLAIN = SHORT | {"explore__enabled": False, "training__surplus": "drop"}
PPO = PLAIN | {
    "advantage__base_estimator": "gae",
    "advantage__normalise_batch": True,
    "training__epochs": 2,
    "kl__coefficient": 0.1,
    "shaping__steps": ["perplexity", "clip_cov"],
    "shaping__clip_cov__share": 0.1,
    "loss__ratio": "token",
}
ARCHIVE = SHORT | {
    "explore__archive_size": 4,
    "explore__archive_revisits": 2,
    "explore__archive_threshold": 0.0,
    "explore__archive_max_success_rate": 1.0,
}
RETURNS = SHORT | {
    "explore__enabled": False,
    "returns__size": 4,
    "returns__visits": 2,
    "returns__max_success_rate": 1.0,
    "returns__least_share": 0.0,
    "returns__rollouts": 3,
    "rollout__prompts_per_round": 1,
    "rollout__rollouts_per_prompt": 2,
}
TOOLS = {
    "data__task": f"{SCRIPTED}:Calling",
    "rollout__reject_degenerate": False,
    "tools__kind": "calculator",
    "tools__begin": "5",
    "tools__end": "=",
    "tools__result": "(*-{output})",
    "tools__max_calls": 1,
    "tools__max_output_tokens": 4,
}
BRANCHING = TOOLS | PLAIN | {
    "tools__branching": True,
    "tools__initial_rollouts": 2,
    "tools__branch_probability": 1.0,
}

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
        ("chunk", 2),  # of First Return
        pytest.param("chunk", 9, marks=pytest.mark.slow),
        ("chunk", 14),  # after a round
        ("round", 2),
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
    work, points = stopped_and_continued(path, tiny_run.config(runtime__console="plain"), monkeypatch, [nth(point, number)])
    assert points[0][-1] == point, "the run goes on after the stop"
    assert "SIGTERM: stopped inside step" in capsys.readouterr().out
    assert_same_run(path, finished_run, session)
    assert work["decode_chunk"] == work_of_finished_run["decode_chunk"], "tokens were sampled twice"
    assert work["apply"] == work_of_finished_run["apply"], "an update was made twice"
    assert not (path / "partial_step").exists()


@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        pytest.param(PPO, [nth("micro_batch", 2), after("mini_batch", 2), after("mini_batch", 3)], id="ppo"),
        pytest.param(PPO, [nth("scoring", 3), after("micro_batch", 8)], marks=pytest.mark.slow, id="ppo, other points"),
        pytest.param(ARCHIVE, [nth("chunk", 40), after("chunk", 1), after("chunk", 4)], id="archive"),
        pytest.param(RETURNS, [nth("chunk", 20), after("chunk", 3), after("round", 3)], id="returns"),
        pytest.param(TOOLS | SHORT, [nth("chunk", 3), after("chunk", 2), after("chunk", 9)], id="tools"),
        pytest.param(BRANCHING, [nth("chunk", 3), after("chunk", 5), after("chunk", 4)], id="branching"),
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
