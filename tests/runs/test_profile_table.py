"""The table of a profile: it counts every second once, and gives the share outside programs and grading."""

from __future__ import annotations

import json

import pytest

from fr3e_jax.runs.profile_table import COMPILATION, GRADING, PROGRAM, TRANSFER, Cell, Profile


@pytest.fixture
def profile() -> Profile:
    """Two steps of 5 s: 8 s of programs, 1 s compiling, the rest elsewhere."""
    return Profile(
        steps=[3, 4],
        seconds=10.0,
        stages={"explore": 7.0, "update": 2.5, "evaluate": 0.0},
        cells={
            ("explore", PROGRAM, "chunk"): Cell(8, 6.0),
            ("explore", GRADING, "grade"): Cell(100, 0.25),
            ("explore", TRANSFER, "to host"): Cell(8, 0.125),
            ("update", PROGRAM, "accumulate"): Cell(4, 1.25),
            ("update", COMPILATION, "accumulate"): Cell(1, 1.0),
            ("", PROGRAM, "apply"): Cell(1, 0.25),
        },
        background_seconds=0.5,
    )


def test_kinds_add_up_to_the_whole(profile):
    totals = profile.totals()
    assert totals == {"program": 7.5, "grading": 0.25, "transfer": 0.125, "host": 1.125, "compilation": 1.0}
    assert sum(totals.values()) == profile.seconds
    assert profile.outside_share() == pytest.approx((1.125 + 0.125) / 9.0)


def test_rows_of_a_stage_add_up_to_it_and_stages_to_the_whole(profile):
    rows = profile.rows()
    stages = {row["stage"]: row["seconds"] for row in rows if row["kind"] == "stage"}
    assert stages == {"explore": 7.0, "update": 2.5, "between stages": 0.5}
    for stage, seconds in stages.items():
        parts = [row for row in rows if row["stage"] == stage and row["kind"] != "stage"]
        assert sum(row["seconds"] for row in parts) == pytest.approx(seconds)
        assert parts[-1]["kind"] == "host"
    assert [row["name"] for row in rows if row["stage"] == "explore"] == ["", "chunk", "grade", "to host", ""]
    assert rows[1]["share"] == 0.6 and rows[1]["calls"] == 8


def test_the_text_gives_times_per_step(profile):
    lines = profile.lines()
    assert lines[0] == "where the time of steps 3 to 4 went (5.000 s a step; each program was waited for)"
    (chunk,) = [line.split() for line in lines if "chunk" in line]
    assert chunk == ["chunk", "4.0", "3000.0", "60.0%"]
    (compiling,) = [line.split() for line in lines if "compiling" in line]
    assert compiling == ["compiling", "accumulate", "0.5", "500.0", "10.0%"]
    assert "outside device programs and grading: 13.9% of the time" in lines[-1] and "250.0 ms a step" in lines[-1]
    assert max(map(len, lines[:-1])) <= 100


def test_json_holds_the_same(profile):
    content = json.loads(json.dumps(profile.as_json()))
    assert content["rows"] == profile.rows() and content["totals"] == profile.totals()
    assert content["outside_programs_and_grading"] == profile.outside_share()


def test_a_step_without_time_has_no_shares():
    nothing = Profile([3], 0.0, {}, {}, 0.0)
    assert nothing.outside_share() == 0 and all(row["share"] == 0 for row in nothing.rows())
    assert nothing.lines()[0].startswith("where the time of step 3 went")
