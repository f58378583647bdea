"""`fr3e compare`: tables on the terminal, files, and mistakes in one line."""

import csv
import json
import subprocess
import sys

import pytest
from made_up_runs import made_up_run, spending

from fr3e_jax.cli import main


@pytest.fixture
def runs(tmp_path):
    """A folder of two groups with two seeds each."""
    for anchors, gain in ((4, 0.1), (2, 0.3)):
        for seed in (0, 1):
            made_up_run(
                tmp_path / "runs" / f"{anchors}-{seed}",
                settings=[f"explore.num_anchors={anchors}"],
                seed=seed,
                training={1: spending(100, loss=75, cpu=5.0), 2: spending(100, loss=75, cpu=9.0)},
                evaluations={0: {"avg@16": 0.25}, 2: {"avg@16": 0.25 + gain + seed / 10}},
            )
    return tmp_path / "runs"


def test_the_flags_stand_above_the_tables(runs, capsys):
    made_up_run(runs / "late", seed=2, settings=["explore.num_anchors=2"], training={1: spending(3)}, finished=False)
    assert main(["compare", str(runs), "--baseline", "num_anchors=4"]) == 0
    output = capsys.readouterr().out
    place = output.index("BEFORE YOU COMPARE")
    assert (
        place
        < output.index("num_anchors=2 (seed 2, late) is interrupted at step 1 of 100")
        < output.index("Final values")
    )
    assert "0.600 ± 0.071 (2 of 3)" in output and "+0.200 to +0.200" in output and "not reached" not in output
    for title in ("Differences to num_anchors=4", "Spent to reach avg@16 = 0.400", "Spent in all", "Runs"):
        assert title in output


def test_a_run_of_another_score_did_not_miss_the_one_to_reach_and_an_empty_setting_has_a_name(runs, capsys):
    other = ["explore.num_anchors=2", "name=other", "model.path=elsewhere"]
    made_up_run(runs / "other", settings=other, training={1: spending(3)}, evaluations={1: {"avg@8": 0.1}})
    assert main(["compare", str(runs), "--reach", "0.35"]) == 0
    output = capsys.readouterr().out
    assert "not reached" not in output and "model.path differs: (empty): " in output


def test_flags_break_at_words_where_the_terminal_ends(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    made_up_run(runs / "late", seed=2, settings=["explore.num_anchors=2"], training={1: spending(3)}, finished=False)
    assert main(["compare", str(runs), "--baseline", "num_anchors=4"]) == 0
    flags = capsys.readouterr().out.split("BEFORE YOU COMPARE")[1].split("Final values")[0]
    assert max(map(len, flags.splitlines())) <= 60
    assert "num_anchors=2 (seed 2, late) is interrupted at step 1 of 100" in " ".join(flags.split())


def test_files_hold_the_comparison(runs, tmp_path, capsys):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "markdown", "page")}
    options = [f"--{kind}={path}" for kind, path in files.items()]
    assert main(["compare", str(runs), "--label", "two", "--label", "four", *options]) == 0
    assert capsys.readouterr().out.count("wrote ") == 4
    written = json.loads(files["json"].read_text())
    assert [group["label"] for group in written["groups"]] == ["two", "four"] and written["score"] == pytest.approx(0.6)
    with open(files["csv"], newline="") as stream:
        assert sum(row["table"] == "final" and row["metric"] == "avg@16" for row in csv.DictReader(stream)) == 4
    assert "| avg@16 |" in files["markdown"].read_text()
    assert files["page"].read_text().startswith("<!DOCTYPE html>")


def test_one_file_may_go_to_standard_output_alone(runs, tmp_path, capsys):
    assert main(["compare", str(runs), "--json", "-", "--page", str(tmp_path / "page.html")]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["metric"] == "avg@16" and output.err == f"wrote {tmp_path}/page.html\n"
    assert main(["compare", str(runs), "--json", "-", "--csv", "-"]) == 2
    assert "- is named twice; expected another FILE" in capsys.readouterr().err
    assert main(["compare", str(runs), "--page", "-"]) == 2
    assert "--page - is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["absent"], "found no run (absent: found no such directory; expected a run"),
        (["RUNS/4-0"], "found only one run"),
        (["RUNS", "--baseline", "x"], "no group is called 'x'"),
        (["RUNS", "--metric", "x"], "no run has 'x'"),
        (["RUNS", "--by", "x.y"], "no run has the setting 'x.y'"),
        (["RUNS", "--label", "x"], "expected 2 different ones"),
        (["RUNS", "--reach", "nan"], "'nan' is not a number"),
        (["RUNS", "--json", "RUNS"], "cannot be written"),
        ([], "RUN|SWEEP_DIR"),
    ],
)
def test_mistakes_cost_one_line(runs, capsys, arguments, complaint):
    assert main(["compare", *(word.replace("RUNS", str(runs)) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


def test_a_wide_table_is_turned_to_fit_and_hostile_names_are_text(runs, capsys, monkeypatch):
    monkeypatch.setattr("fr3e_jax.cli.tables.FILE_WIDTH", 60)
    assert main(["compare", str(runs), "--label", "[red]a\x1b[31m", "--label", "b"]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output and "[red]a\\u001b[31m" in output.replace("\n", "")
    lines = output.splitlines()
    assert max(map(len, lines[: lines.index(next(x for x in lines if x.startswith("Mean ±")))])) <= 60
    assert any(line.startswith("│ avg@16 ") for line in lines)


def test_a_comparison_loads_no_jax(runs):
    program = (
        "import sys; from fr3e_jax.cli import main; code = main(sys.argv[1:]); sys.exit(code or 'jax' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "compare", str(runs), "--page", str(runs / "page.html")]
    assert subprocess.run(command, capture_output=True).returncode == 0
