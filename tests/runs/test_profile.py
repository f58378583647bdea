"""``runtime.profile_steps`` times programs by stage and leaves the run as it is."""

from __future__ import annotations

import pytest

from fr3e_jax.loop.train import train
from fr3e_jax.programs import program
from fr3e_jax.runs import profile
from fr3e_jax.runs.metrics import read_metrics, without_timing

_STAGES = {"first_return", "explore", "score", "update", "store", "evaluate", "checkpoint"}


@pytest.fixture(scope="module")
def profiled_run(tmp_path_factory, tiny_run):
    path = tmp_path_factory.mktemp("profiled") / "run"
    settings = {"runtime__profile_steps": 1, "checkpoint__every": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "WARM_UP_STEPS", 1)
        assert train(tiny_run.config(**settings, runtime__run_dir=str(path))) == 0
    assert program._observer is None
    return path


def test_a_profiled_run_is_the_same_run(profiled_run, finished_run):
    found, wanted = (
        [without_timing(record) for record in read_metrics(path / "metrics.jsonl")]
        for path in (profiled_run, finished_run)
    )
    assert found == wanted


def test_the_table_names_stages_and_programs_and_holds_every_second(profiled_run):
    head, _, *lines = (profiled_run / "profile" / "table.txt").read_text().splitlines()
    assert head.startswith("where the time of step 2 went")
    stages: dict[str, float] = {}
    stage, programs = "", dict[str, dict[str, float]]()
    for line in lines[:-1]:
        label, milliseconds = line[:34].rstrip(), float(line[42:53])
        if label.startswith(" "):
            programs[stage][label.strip()] = milliseconds
        else:
            stage, stages[label], programs[label] = label, milliseconds, {}
    assert set(stages) == _STAGES | {"between stages"}
    for stage, milliseconds in stages.items():
        assert not programs[stage] or sum(programs[stage].values()) == pytest.approx(milliseconds, abs=1), stage
    assert {"decode_chunk", "select_anchors"} <= programs["explore"].keys()
    assert "accumulate" in " ".join(programs["update"]) and "score" in programs["score"]
    metrics = read_metrics(profiled_run / "metrics.jsonl", kind="train")[1]
    assert stages["explore"] == pytest.approx(1000 * metrics["seconds/explore"], abs=0.1)


def test_the_step_after_the_measured_ones_is_traced(profiled_run):
    assert list((profiled_run / "profile").glob("plugins/profile/*/*.trace.json.gz"))


def test_no_profile_unless_asked_for(finished_run):
    assert not (finished_run / "profile").exists()
