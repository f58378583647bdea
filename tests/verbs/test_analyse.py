"""``fr3e analyse``: files, table, and runs without data."""

import csv
import json

import numpy as np
import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.cli.entry import main
from fr3e_jax.studies.analysis.catalogue import ANALYSES, analyse, findings


@pytest.fixture
def run(tmp_path):
    """Twelve steps of eight rollouts of digits, with evaluations before and after."""
    rng = np.random.default_rng(0)

    def tokens():
        return [*rng.integers(2, 20, int(rng.integers(4, 12))).tolist(), 1]

    rollouts = [
        rollout(step, p, base, rng.random() < 0.5, tokens(), advantage=float(rng.normal()))
        for step in range(1, 13)
        for p in range(2)
        for base in range(4)
    ]
    samples = [
        rollout(step, p, base, rng.random() < 0.5, tokens(), kind="eval")
        for step in (0, 12)
        for p in range(4)
        for base in range(4)
    ]
    return made_up_run(tmp_path / "run", rollouts=rollouts, samples=samples)


def test_every_finding_is_written_as_json_and_csv_with_equal_rows(run, capsys):
    assert main(["analyse", str(run.directory.path)]) == 0
    output = capsys.readouterr().out
    folder = run.directory.path / "analysis"
    found = findings(run)
    assert {path.name for path in folder.iterdir()} == {f"{one.name}.{end}" for one in found for end in ("json", "csv")}
    assert len(found) == len(ANALYSES) and "left out" not in output
    evaluation = next(one for one in found if one.name == "pass_at_k").series[-1]
    row = f"{evaluation.name} {evaluation.y[0]:.3g} at {evaluation.x[0]} {evaluation.y[-1]:.3g} at {evaluation.x[-1]}"
    assert row.split() in [line.split() for line in output.splitlines()]
    for one in found:
        content = json.loads((folder / f"{one.name}.json").read_text())
        assert (content["title"], content["type"]) == (one.title, type(one).__name__) and one.name in output
        with (folder / f"{one.name}.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        expected = list(one.rows())
        assert len(rows) == len(expected)
        for written, row in zip(rows, expected, strict=True):
            assert {key: value for key, value in written.items() if value} == {
                key: str(value) for key, value in row.items() if value not in (None, "")
            }


def test_only_the_named_analyses_of_two_runs_are_printed_as_json(run, tmp_path, capsys):
    other = made_up_run(tmp_path / "other", rollouts=[rollout(1, 0, 0, True, [2, 1], advantage=0.5)])
    arguments = [
        str(run.directory.path),
        str(other.directory.path),
        "--only",
        "advantages_over_steps",
        "--json",
    ]
    assert main(["analyse", *arguments, "--out", str(tmp_path / "out")]) == 0
    (content,) = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in content["series"]] == [
        f"{name}: {line}"
        for name in ("run", "other")
        for line in ("mean of 10 steps", "quartiles about the median", "5 % to 95 %")
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "advantages_over_steps.csv",
        "advantages_over_steps.json",
    ]
    everything = [argument for argument in arguments if argument not in ("--only", "advantages_over_steps")]
    assert main(["analyse", *everything]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) and "left out: pass_at_k of other: no stored evaluation samples" in printed.err
    assert (run.directory.path / "analysis" / "with_other" / "advantages_over_steps.csv").is_file()


def test_a_run_without_data_costs_one_line_and_exit_code_2(tmp_path, capsys):
    empty = made_up_run(tmp_path / "empty")
    assert main(["analyse", str(empty.directory.path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "found nothing to analyse" in error and "no stored rollouts of training" in error
    assert not (empty.directory.path / "analysis").exists()


def test_one_evaluation_alone_is_a_curve(tmp_path):
    samples = [rollout(0, 0, base, base == 1, [2, 1], kind="eval") for base in range(3)]
    found, _ = analyse([made_up_run(tmp_path / "run", samples=samples)])
    assert {"pass_at_k", "maj_at_k"} <= {one.name for one in found}


def test_an_unknown_analysis_and_a_missing_run_are_named(run, tmp_path, capsys):
    assert main(["analyse", str(run.directory.path), "--only", "passk"]) == 2
    assert "found no analysis passk; expected some of pass_at_k" in capsys.readouterr().err
    assert main(["analyse", str(tmp_path / "absent")]) == 2 and main(["analyse"]) == 2
    assert "expected run directories" in capsys.readouterr().err


def test_the_list_names_needs_and_sources(capsys):
    assert main(["analyse", "--list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output and analysis.source in output for name, analysis in ANALYSES.items())
