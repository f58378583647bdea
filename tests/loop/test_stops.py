"""A run that is told to stop inside a step keeps what is sampled, and its continuation is the run without a stop."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jax
import pytest
from run_comparison import assert_same_run, reader
from stops import Watched, nth

from fr3e_jax.loop.session import open_session
from fr3e_jax.loop.train import train

PLAIN = {"explore__enabled": False, "training__surplus": "drop", "evaluation__every": 0, "training__max_steps": 2}


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
