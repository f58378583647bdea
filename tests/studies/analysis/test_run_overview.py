"""The list of runs, from run directories made by hand."""

from __future__ import annotations

import json

import pytest

from fr3e_jax.cli.entry import main
from fr3e_jax.configuration import Config, save_config
from fr3e_jax.runs.metrics import MetricsWriter
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.runs.run_state import StatusFile
from fr3e_jax.studies.analysis.run_overview import RunOverview, SweepOverview, age, as_json, overview, run_overview


def made(path, state="finished", reason="", *, name="demo", verb="train", steps=2, after=0.5):
    run = RunDirectory(path)
    config = Config(name=name)
    config.training.max_steps, config.training.max_sampled_tokens = 10, 4000
    save_config(config, run.path, verb=verb, platform="cpu", device_kind="cpu")
    metrics = MetricsWriter(run, resume_step=None)
    metrics.write(0, {"avg@16": 0.25, "greedy": 0.5}, kind="eval")
    for step in range(1, steps + 1):
        metrics.write(step, {"tokens/sampled_tokens": 1000})
    if after is not None:
        metrics.write(steps, {"avg@16": after, "greedy": 1.0}, kind="eval")
    with StatusFile(run) as status:
        status.end(state, reason)
    return run


def test_a_run_in_a_line(tmp_path):
    made(tmp_path / "a", "failed", "step 2: no signal")
    found = run_overview(tmp_path / "a")
    assert (found.recipe, found.verb, found.state, found.reason) == ("demo", "train", "failed", "step 2: no signal")
    assert (found.step, found.max_steps, found.sampled_tokens, found.max_sampled_tokens) == (2, 10, 2000, 4000)
    assert (found.score, found.before, found.after) == ("avg@16", 0.25, 0.5)


def test_the_start_alone_has_no_score_after(tmp_path):
    made(tmp_path / "a", "stopped", after=None)
    assert (run_overview(tmp_path / "a").before, run_overview(tmp_path / "a").after) == (0.25, None)


def test_runs_and_sweeps_are_found_below_a_folder(tmp_path):
    made(tmp_path / "project" / "a")
    made(tmp_path / "project" / "sweep-x" / "000-seed=0", after=0.625)
    made(tmp_path / "project" / "sweep-x" / "001-seed=1", "failed", "disk full")
    sweep = {"recipe": "configs/demo_fr3e.yaml", "runs": [{}, {}, {}]}
    (tmp_path / "project" / "sweep-x" / "sweep.json").write_text(json.dumps(sweep))
    (tmp_path / "project" / "a" / "checkpoints" / "config.yaml").parent.mkdir()
    (tmp_path / "no_run").mkdir()
    listed = {one.path.rpartition("/")[2]: one for one in overview(tmp_path)}
    assert listed.keys() == {"a", "sweep-x"} and isinstance(listed["a"], RunOverview)
    found = listed["sweep-x"]
    assert isinstance(found, SweepOverview) and [run.after for run in found.runs] == [0.625, 0.5]
    assert found.states() == "1 finished, 1 failed, 1 not begun"
    assert json.loads(json.dumps(as_json([found])))[0]["runs"][1]["reason"] == "disk full"


@pytest.mark.parametrize(
    "name, content",
    [
        ("config.yaml", "a: [1"),
        ("config.yaml", "just text"),
        ("metrics.jsonl", '{"step": 1}\n'),
        ("metrics.jsonl", "\x00\x00\n"),
    ],
)
def test_a_damaged_run_is_listed_with_the_reason(tmp_path, name, content):
    made(tmp_path / "a")
    (tmp_path / "a" / name).write_text(content)
    (found,) = overview(tmp_path)
    assert found.state == "damaged" and found.reason


def test_the_age_has_one_unit():
    assert [age(0.0, now) for now in (40, 330, 3 * 3600 + 5, 12.5 * 86400)] == ["40 s", "5 min", "3 h", "12 d"]


class TestCommand:
    def test_it_prints_a_line_for_each_run_and_the_reason_of_a_failure(self, tmp_path, capsys):
        made(tmp_path / "good")
        made(tmp_path / "bad", "failed", "step 2: \x1b[31mno signal")
        assert main(["runs", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sorted(line.split()[0] for line in lines[1:3]) == ["bad", "good"]
        assert "25.0%" in lines[1] and "2k/4k" in lines[1] and "2/10" in lines[1]
        assert lines[3].startswith("bad failed: step 2: ") and "\x1b" not in lines[3]

    @pytest.mark.parametrize(("width", "absent"), [(160, ""), (80, "recipe"), (64, "recipe, before")])
    def test_a_narrow_terminal_lacks_columns_and_names_stay_whole(self, tmp_path, capsys, monkeypatch, width, absent):
        monkeypatch.setattr("fr3e_jax.cli.tables.FILE_WIDTH", width)
        made(tmp_path / "reinforce_ada-22", name="reinforce_ada_16_weak")
        assert main(["runs", str(tmp_path)]) == 0
        head, line, *note = capsys.readouterr().out.splitlines()
        assert "reinforce_ada-22 " in line and "50.0%" in line and len(line) <= width
        assert note == ([f"A wider terminal also shows: {absent}."] if absent else [])
        assert not set(filter(None, absent.split(", "))) & set(head.split())

    def test_it_filters_unfolds_and_sorts(self, tmp_path, capsys):
        made(tmp_path / "s" / "000", after=0.25)
        made(tmp_path / "s" / "001", "stopped", after=0.75)
        (tmp_path / "s" / "sweep.json").write_text(json.dumps({"recipe": "demo_fr3e.yaml", "runs": [{}, {}]}))

        def listed(*arguments):
            assert main(["runs", *arguments, "--json"]) == 0
            return [(one["path"].rpartition("/")[2], one.get("state")) for one in json.loads(capsys.readouterr().out)]

        made(tmp_path / "other", after=0.5)
        assert listed(str(tmp_path), "--state", "stopped") == [("001", "stopped")]
        assert [name for name, _ in listed(str(tmp_path), "--unfold", "--sort", "after")] == ["001", "other", "000"]
        assert [name for name, _ in listed(str(tmp_path / "s"), "--sort", "name")] == ["000", "001"]
        assert listed(str(tmp_path), "--sort", "name") == [("other", "finished"), ("s", None)]

    def test_an_empty_folder_and_a_missing_one(self, tmp_path, capsys):
        assert main(["runs", str(tmp_path)]) == 0 and "no runs" in capsys.readouterr().out
        assert main(["runs", str(tmp_path / "absent")]) == 2 and "found no folder" in capsys.readouterr().err
