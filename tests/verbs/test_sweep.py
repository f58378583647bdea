"""A sweep is checked before it starts, runs each combination separately, survives failures and records each end."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
from pathlib import Path

import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.verbs.sweep_axes import split_values
from fr3e_jax.verbs.sweep_runs import Run, safe_name
from fr3e_jax.verbs.sweep_table import print_table

# A stand-in for the interpreter: it is called as `-m fr3e_jax VERB RECIPE settings...` and imitates a run.
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, signal, sys, time
settings = dict(argument.split("=", 1) for argument in sys.argv[5:] if "=" in argument)
print("arguments", sys.argv[1:])
if settings["seed"] == "1":
    sys.exit(3)
if settings["seed"] == "9":
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)
if settings["seed"] == "8":
    sys.exit(0)  # it was told to stop, and has saved
summary = {{"sampled_tokens": 1000 + int(settings["seed"]), "before": {{"avg@16": 0.25}}, "after": {{"avg@16": 0.5}}}}
pathlib.Path(settings["runtime.run_dir"], "summary.json").write_text(json.dumps(summary))
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"name: tried/once\nruntime: {{output_dir: {tmp_path / 'runs'}}}\n")
    return str(path)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch) -> None:
    script = tmp_path / "interpreter"
    script.write_text(STAND_IN)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def written(recipe: str) -> tuple[Path, dict]:
    [folder] = (Path(recipe).parent / "runs").iterdir()
    return folder, json.loads((folder / "sweep.json").read_text())


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,3", ["1", "2", "3"]),
        ("[1,2],[4]", ["[1,2]", "[4]"]),
        ("{a: [1,2], b: 3},4", ["{a: [1,2], b: 3}", "4"]),
        ("'a,b',\"c,d\",e", ["'a,b'", '"c,d"', "e"]),
        ("don't,x", ["don't", "x"]),
        ("", [""]),
        ("a,", ["a", ""]),
    ],
)
def test_values_split_at_commas_outside_brackets_and_quotes(text, values):
    assert split_values(text) == values


@pytest.mark.parametrize("text", ["[1,2", "'a,b", "{a: [1}"])
def test_value_with_an_open_bracket_or_quote_is_refused(text):
    with pytest.raises(ConfigError, match="lacks a closing"):
        split_values(text)


def test_directory_names_are_safe_for_file_systems():
    assert safe_name("model.path=/a b:c,pass_at=[1,2]") == "model.path=_a_b_c,pass_at=_1,2_"
    assert len(safe_name("x" * 1000)) < 255


def test_dry_run_prints_the_product_as_commands_and_starts_nothing(recipe, capsys):
    assert main(["sweep", recipe, "seed=0,1", "explore.num_anchors=2,4", "training.epochs=5", "--dry-run"]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [command[:5] for command in commands] == [[sys.executable, "-m", "fr3e_jax", "train", recipe]] * 4
    swept = [tuple(command[5:8]) for command in commands]
    assert swept[1] == ("seed=0", "explore.num_anchors=4", "training.epochs=5") and len(set(swept)) == 4
    directories = [command[8].removeprefix("runtime.run_dir=") for command in commands]
    assert Path(directories[1]).name == "001-seed=0,explore.num_anchors=4"
    assert Path(directories[1]).parent.name.startswith("sweep-tried_once-")
    assert not (Path(recipe).parent / "runs").exists()


def test_recipes_of_a_folder_are_an_axis(recipe, stand_in, tmp_path, capsys):
    experiment = tmp_path / "experiment"
    experiment.mkdir()
    for name in ("b", "a"):
        (experiment / f"{name}.yaml").write_text(f"name: {name}\nruntime: {{output_dir: {tmp_path / 'runs'}}}\n")
    assert main(["sweep", str(experiment), "seed=0,2"]) == 0
    folder, record = written(recipe)
    assert folder.name.startswith("sweep-experiment-") and record["recipe"] == str(experiment)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "000-a,seed=0",
        "001-a,seed=2",
        "002-b,seed=0",
        "003-b,seed=2",
    ]
    assert [run["command"][4] for run in record["runs"]] == [str(experiment / f"{n}.yaml") for n in "aabb"]
    assert [run["settings"]["seed"] for run in record["runs"]] == ["0", "2"] * 2
    assert "[4/4] b seed=2: exit 0" in capsys.readouterr().out
    (tmp_path / "nothing").mkdir()
    assert main(["sweep", str(tmp_path / "nothing"), "seed=0"]) == 2
    assert "is a folder without recipes" in capsys.readouterr().err


def test_commands_of_a_dry_run_hold_valid_settings(recipe, capsys):
    assert main(["sweep", recipe, "evaluation.pass_at=[1,2],[4]", "sft.output='a,b',c", "--dry-run"]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    configs = [load_config(command[4], command[5:]) for command in commands]
    assert [(config.evaluation.pass_at, config.sft.output) for config in configs] == [
        ([1, 2], "a,b"),
        ([1, 2], "c"),
        ([4], "a,b"),
        ([4], "c"),
    ]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=0,1", "explore.num_anchors=4,0"], "explore.num_anchors=0 is not valid"),
        (["seed=0,1", "sed=2"], "sed is not a setting; nearest: seed"),
        (["rollout.temperature=1,0"], "set rollout.temperature=1"),
    ],
)
def test_sweep_with_an_invalid_combination_starts_nothing(recipe, stand_in, capsys, overrides, expected):
    assert main(["sweep", recipe, *overrides]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err and captured.err.count("\n") == 1
    assert not (Path(recipe).parent / "runs").exists()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_failed_run_is_recorded_and_the_others_go_on(recipe, stand_in, capsys, jobs):
    assert main(["sweep", recipe, "seed=0,1,2", "--jobs", jobs]) == 1
    folder, record = written(recipe)
    assert [run["exit_code"] for run in record["runs"]] == [0, 3, 0]
    assert [run["summary"] and run["summary"]["sampled_tokens"] for run in record["runs"]] == [1000, None, 1002]
    log = (folder / "001-seed=1" / "log.txt").read_text()
    assert log.startswith("arguments ['-m', 'fr3e_jax', 'train'") and "seed=1" in log
    assert str(folder / "001-seed=1" / "log.txt") in capsys.readouterr().out


def test_table_shows_settings_exit_code_scores_tokens_and_seconds(recipe, stand_in, capsys):
    main(["sweep", recipe, "seed=0,1"])
    lines = capsys.readouterr().out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(" #  seed"))
    cells = [re.split(r"  +", line.strip()) for line in lines[start : start + 3]]
    assert cells[0] == ["#", "seed", "exit", "avg@16 before", "avg@16 after", "sampled tokens", "seconds"]
    assert cells[1][:-1] == ["0", "0", "0", "0.25", "0.5", "1,000"] and float(cells[1][-1]) >= 0
    assert cells[2][:-1] == ["1", "1", "3", "-", "-", "-"]


def test_sweep_whose_runs_succeed_returns_0_and_passes_the_verb(recipe, stand_in):
    assert main(["sweep", recipe, "seed=0,2", "--verb", "sft"]) == 0
    _, record = written(recipe)
    assert record["verb"] == "sft" and [run["command"][3] for run in record["runs"]] == ["sft", "sft"]


def test_killed_sweep_stops_its_runs_and_reports_which_ended(recipe, stand_in, capsys):
    assert main(["sweep", recipe, "seed=0,9,2"]) == 1
    _, record = written(recipe)
    assert [run["exit_code"] for run in record["runs"]] == [0, -15, None]
    assert "not run" in capsys.readouterr().out


def test_the_same_command_goes_on_with_a_sweep_that_has_not_succeeded(recipe, stand_in, capsys):
    assert main(["sweep", recipe, "seed=0,1,2", "training.max_steps=5"]) == 1
    folder, first = written(recipe)
    assert "process" not in first
    (folder / "001-seed=1" / "log.txt").write_text("earlier\n")
    capsys.readouterr()
    assert main(["sweep", recipe, "seed=0,1,2", "training.max_steps=5"]) == 1
    again, record = written(recipe)
    output = capsys.readouterr().out
    assert again == folder and "2 of 3 runs are finished" in output
    assert output.count("exit 3") == 1 and "exit 0 after" not in output, "finished runs do not run again"
    assert [run["exit_code"] for run in record["runs"]] == [0, 3, 0]
    log = (folder / "001-seed=1" / "log.txt").read_text()
    assert log.startswith("earlier\n") and "'--continue'" in log
    assert record["runs"][0]["summary"] == first["runs"][0]["summary"]


def test_a_stopped_run_is_not_a_finished_one(recipe, stand_in, capsys):
    assert main(["sweep", recipe, "seed=0,8"]) == 1
    folder, _ = written(recipe)
    said = capsys.readouterr().out
    assert ", stopped; see" in said and "the same command goes on" in said
    assert main(["sweep", recipe, "seed=0,8"]) == 1
    assert written(recipe)[0] == folder and "1 of 2 runs are finished" in capsys.readouterr().out


def test_a_whole_sweep_another_sweep_and_a_new_one_have_folders_of_their_own(recipe, stand_in, monkeypatch):
    stamps = iter(f"sweep-{n}" for n in range(9))
    monkeypatch.setattr(
        "fr3e_jax.verbs.sweep.sweep_folder", lambda out, name: Path(out) / f"sweep-tried_once-{next(stamps)}"
    )
    count = lambda: len(list((Path(recipe).parent / "runs").iterdir()))
    for number, arguments in enumerate((["seed=0"], ["seed=0"], ["seed=1"], ["seed=1,0"], ["seed=1", "--new"]), 1):
        main(["sweep", recipe, *arguments])
        assert count() == number
    main(["sweep", recipe, "seed=1"])
    assert count() == number, "the one with seed=1 failed, and goes on"


def test_a_sweep_that_runs_is_not_run_twice(recipe, stand_in, capsys):
    main(["sweep", recipe, "seed=1"])
    folder, record = written(recipe)
    record |= {"process": os.getpid(), "host": platform.node()}
    (folder / "sweep.json").write_text(json.dumps(record))
    assert main(["sweep", recipe, "seed=1"]) == 2
    assert f"is running in process {os.getpid()}" in capsys.readouterr().err
    record["host"] = "another"
    (folder / "sweep.json").write_text(json.dumps(record))
    assert main(["sweep", recipe, "seed=1"]) == 1


def test_constant_settings_are_said_once(recipe, stand_in, capsys):
    main(["sweep", recipe, "seed=0,2", "training.max_steps=5"])
    output = capsys.readouterr().out
    assert output.count("training.max_steps=5") == 1 and "all with training.max_steps=5" in output


def test_a_sample_of_the_combinations_is_drawn_by_its_seed(recipe, capsys):
    def drawn(*more):
        assert main(["sweep", recipe, "seed=0,1,2,3", "explore.num_anchors=1,2,3", "--dry-run", *more]) == 0
        return [line.split("runtime.run_dir")[0] for line in capsys.readouterr().out.splitlines()]

    everything, some = drawn(), drawn("--sample", "5")
    assert len(everything) == 12 and len(some) == 5 and [line for line in everything if line in some] == some
    assert drawn("--sample", "5") == some != drawn("--sample", "5", "--sample-seed", "1")
    assert drawn("--sample", "99") == everything


def test_table_shows_values_that_look_like_markup(capsys):
    runs = [Run({"sft.output": value}, "", "", []) for value in ("[perplexity]", "/data/[/x]", "\x1b[2J")]
    print_table(runs, ["sft.output"])
    shown = capsys.readouterr().out
    assert "[perplexity]" in shown and "/data/[/x]" in shown and r"\u001b[2J" in shown


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        ({"avg@4": 0.25, "greedy": 0.5}, "avg@4"),
        ({"gsm8k/greedy": 0.75, "aime24/avg@32": 0.5, "avg": 0.625, "greedy": 0.7}, "avg"),
        ({"length/mean": 7.0, "greedy": 0.5}, "greedy"),
    ],
    ids=["samples", "sets with different numbers of samples", "greedy only"],
)
def test_table_shows_the_metric_that_ranks_the_checkpoints(after, shown, capsys):
    print_table([Run({"seed": "0"}, "", "", [], exit_code=0, summary={"after": after})], ["seed"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"{shown} after" in text and f"{after[shown]:.3g}" in text


def test_random_search_draws_from_ranges_by_its_seed(recipe, capsys):
    ranges = ["optimizer.learning_rate=loguniform(1e-5,1e-3)", "explore.num_anchors=integers(1,3)", "seed=0,1"]

    def drawn(*more):
        assert main(["sweep", recipe, *ranges, "--sample", "40", "--dry-run", *more]) == 0
        commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
        return [dict(word.split("=", 1) for word in command[5:] if "run_dir" not in word) for command in commands]

    found = drawn()
    rates = [float(settings["optimizer.learning_rate"]) for settings in found]
    assert len(found) == 40 and all(1e-5 <= rate <= 1e-3 for rate in rates)
    assert 10 < sum(rate < 1e-4 for rate in rates) < 30, "half of the draws, in the logarithm"
    assert {settings["explore.num_anchors"] for settings in found} == {"1", "2", "3"}
    assert {settings["seed"] for settings in found} == {"0", "1"}
    assert drawn() == found != drawn("--sample-seed", "1")


@pytest.mark.parametrize(
    ("values", "sample", "expected"),
    [
        ("uniform(0,1)", (), "say how many runs draw from it with --sample N"),
        ("uniform(0,1),0.5", ("--sample", "2"), "a range stands alone"),
        ("uniform(0,x)", ("--sample", "2"), "needs two numbers, as in uniform(1,10)"),
        ("loguniform(0,1)", ("--sample", "2"), "expected a first number above 0 below the second"),
        ("uniform(2,1)", ("--sample", "2"), "expected a first number below the second"),
        ("integers(1,2.5)", ("--sample", "2"), "needs two numbers, as in integers(1,10)"),
    ],
)
def test_a_range_that_cannot_be_drawn_from_is_refused(recipe, capsys, values, sample, expected):
    assert main(["sweep", recipe, f"rollout.temperature={values}", *sample]) == 2
    assert expected in capsys.readouterr().err


def test_no_run_begins_after_the_hours_and_the_same_command_goes_on(recipe, stand_in, capsys):
    assert main(["sweep", recipe, "seed=0,2", "--hours", "1e-9"]) == 1
    _, record = written(recipe)
    assert [run["exit_code"] for run in record["runs"]] == [None, None]
    assert "the same command goes on" in capsys.readouterr().out
    assert main(["sweep", recipe, "seed=0,2", "--hours", "1"]) == 0
    _, record = written(recipe)
    assert [run["exit_code"] for run in record["runs"]] == [0, 0]


def test_hours_are_a_positive_number(recipe, capsys):
    for text in ("0", "-1", "nan", "soon"):
        assert main(["sweep", recipe, "seed=0", "--hours", text]) == 2
        assert f"'{text}' is not a number of hours above 0" in capsys.readouterr().err
