"""``--profile`` times the right calls, puts every replaced attribute back, and leaves the run as it is."""

from __future__ import annotations

import json
import threading

import jax
import pytest

from fr3e_jax.loop.train import train
from fr3e_jax.programs import explore_programs
from fr3e_jax.programs.program import programs_of
from fr3e_jax.runs import profile
from fr3e_jax.runs.metrics import read_metrics, without_timing
from fr3e_jax.runs.profile import Stopwatch
from fr3e_jax.session.grading import Grading

_STAGES = {"first_return", "explore", "score", "update", "store", "evaluate", "checkpoint"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def seconds_of(stopwatch: Stopwatch) -> dict[tuple[str, str, str], tuple[int, float]]:
    return {key: (cell.calls, cell.seconds) for key, cell in stopwatch.cells.items()}


def test_a_call_is_timed_less_the_timed_calls_within_it():
    clock, stages = Clock(), ["one"]
    stopwatch = Stopwatch(lambda: stages[-1], clock)

    def inner(seconds):
        clock.now += seconds
        return seconds

    def outer():
        clock.now += 1
        return timed_inner(2) + timed_inner(4)

    timed_inner = stopwatch.timed(inner, "program", "inner")
    timed_outer = stopwatch.timed(outer, "grading", "outer")
    assert timed_outer() == 6
    stages.append("two")
    timed_inner(8)
    assert seconds_of(stopwatch) == {
        ("one", "program", "inner"): (2, 6.0),
        ("one", "grading", "outer"): (1, 1.0),
        ("two", "program", "inner"): (1, 8.0),
    }


def test_a_call_that_raises_is_timed_too():
    clock = Clock()
    stopwatch = Stopwatch(lambda: "", clock)

    def fails():
        clock.now += 3
        raise KeyError

    with pytest.raises(KeyError):
        stopwatch.timed(fails, "program", "fails")()
    assert seconds_of(stopwatch) == {("", "program", "fails"): (1, 3.0)}


def test_other_threads_are_not_part_of_a_step():
    stopwatch = Stopwatch(lambda: "")
    answers = []
    call = stopwatch.timed(lambda: answers.append(1), "program", "elsewhere")
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert answers == [1] and not stopwatch.cells


def test_compiled_programs_are_found_among_attributes_and_module_names(session):
    """These names are in the table; the time of a program that is not an attribute would count as the host's."""
    assert {"_prefill", "_insert", "_fill", "_chunk", "_resize_cache", "_promote"} <= programs_of(
        session.sampler.engine.programs
    ).keys()
    assert {"_score", "_accumulate", "_apply"} <= programs_of(session.model.train_programs(session.config)).keys()
    assert len(programs_of(explore_programs)) == 4
    assert "decode_chunk" not in programs_of(session.sampler.engine.programs)


@pytest.fixture(scope="module")
def profiled_run(tmp_path_factory, tiny_run):
    path = tmp_path_factory.mktemp("profiled") / "run"
    before = (jax.device_get, jax.device_put, Grading.ended, Grading.verdicts, dict(vars(explore_programs)))
    settings = {"runtime__profile_steps": 1, "checkpoint__every": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "WARM_UP_STEPS", 1)
        assert train(tiny_run.config(**settings, runtime__run_dir=str(path))) == 0
    assert (jax.device_get, jax.device_put, Grading.ended, Grading.verdicts, dict(vars(explore_programs))) == before
    return path


def test_a_profiled_run_is_the_same_run(profiled_run, finished_run):
    found, wanted = (
        [without_timing(record) for record in read_metrics(path / "metrics.jsonl")]
        for path in (profiled_run, finished_run)
    )
    assert found == wanted


def test_the_table_names_stages_and_programs_and_holds_every_second(profiled_run):
    table = json.loads((profiled_run / "profile" / "table.json").read_text())
    assert table["steps"] == [2]
    stages = {row["stage"]: row["seconds"] for row in table["rows"] if row["kind"] == "stage"}
    assert set(stages) == _STAGES | {"between stages"}
    assert sum(stages.values()) == pytest.approx(table["seconds"])
    assert sum(table["totals"].values()) == pytest.approx(table["seconds"])
    calls = {(row["stage"], row["name"]): row["calls"] for row in table["rows"]}
    for stage, names in (
        ("first_return", "prefill empty insert fill chunk promote"),
        ("explore", "insert fill chunk select_anchors trajectories"),
        ("score", "score"),
        ("update", "accumulate apply"),
    ):
        assert all(calls.get((stage, name)) for name in names.split()), (stage, calls)
    assert calls["explore", "grade, or hand over"] > calls["explore", "wait for verdicts"] > 0
    metrics = read_metrics(profiled_run / "metrics.jsonl", kind="train")[1]
    assert stages["explore"] == pytest.approx(metrics["seconds/explore"])
    assert all(row["seconds"] > -1e-6 for row in table["rows"])
    assert table["totals"]["program"] > table["totals"]["transfer"] > 0


def test_the_step_after_the_measured_ones_is_traced(profiled_run):
    assert list((profiled_run / "profile").glob("plugins/profile/*/*.trace.json.gz"))
    text = (profiled_run / "profile" / "table.txt").read_text()
    assert text.startswith("where the time of step 2 went") and "  chunk " in text


def test_no_profile_unless_asked_for(finished_run):
    assert not (finished_run / "profile").exists()
