"""Damaged files of a stored run: each verb that reads them ends with a line that names the file, or with its answer."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import signal
from pathlib import Path

import pytest
from damaged_records import LINES, MISSING, VALUES, changed, encoded, leaves, lines_of, write_lines
from reported_runs import write_reported_run

import fr3e_jax
from fr3e_jax.cli import main
from fr3e_jax.runs.metrics import MetricsWriter, read_metrics
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.stored_json import DamagedRecord

SUMMARY = {
    "recipe": "r",
    "seed": 0,
    "steps": 3,
    "compilations": {"programs": 2},
    "before": {"greedy": 0.5},
    "after": None,
}
ROLLOUTS = "rollouts/step_000001.jsonl.gz"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """A sweep of two equal runs; the first one will be damaged."""
    folder = tmp_path_factory.mktemp("sweep")
    write_reported_run(folder / "0")
    (folder / "0" / "summary.json").write_text(json.dumps(SUMMARY))
    (folder / "0" / "status.json").write_text('{"state": "finished", "reason": ""}')
    assert main(["analyse", str(folder / "0"), "--only", "pass_at_k"]) == 0
    shutil.copytree(folder / "0", folder / "1")
    swept = [{"run_dir": name, "exit_code": 0, "settings": {"seed": name}} for name in "01"]
    (folder / "sweep.json").write_text(json.dumps({"recipe": "r", "runs": swept}))
    return folder


def commands(folder: Path) -> list[list[str]]:
    """Every verb that reads stored records, without a model."""
    run = str(folder / "0")
    return [
        ["report", run],
        ["show", run, "--step", "1", "--prompts", "99"],
        ["show", run, "--step", "0", "--eval", "--full"],
        ["analyse", run, "--only", "pass_at_k,entropy_by_sign,advantages_over_steps"],
        ["compare", str(folder), "--json", "-"],
        ["runs", str(folder), "--unfold"],
    ]


@contextlib.contextmanager
def no_hang(seconds: int):
    def end(*_: object) -> None:
        raise AssertionError(f"it took more than {seconds} s of CPU")

    former = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def outcomes(folder: Path, file: str, capsys) -> list[int]:
    """The exit codes of all commands: 0, or 2 with a line that names the file; an exception fails the test."""
    codes = []
    for command in commands(folder):
        capsys.readouterr()
        with no_hang(60):
            codes.append(main(command))
        error = capsys.readouterr().err
        assert codes[-1] in (0, 2), (command, error)
        assert codes[-1] == 0 or (Path(file).name in error and error.count("\n") == 1), (command, error)
    return codes


def damages(folder: Path, rng: random.Random):
    """(file, its damaged lines, description), as many as there are fields, values, lines and files."""
    files = [
        ROLLOUTS,
        "rollouts/eval_000000.jsonl.gz",
        "metrics.jsonl",
        "provenance.json",
        "summary.json",
        "status.json",
    ]
    files += ["analysis/pass_at_k.json", "../sweep.json"]
    for file in files:
        lines = lines_of(folder / "0" / file)
        if file.endswith(".json"):
            lines = [b"".join(lines)]
        for index, line in itertools.product(range(len(lines)), LINES):
            yield file, [*lines[:index], line, *lines[index + 1 :]], f"line {index + 1}: {line[:12]!r}"
        for cut in (rng.randrange(1, len(lines[-1])), 0):
            yield file, [*lines[:-1], lines[-1][:cut]], f"cut at {cut}"
        for index, line in enumerate(lines):
            for path in leaves(json.loads(line)):
                for value in (MISSING, *VALUES):
                    damaged = encoded(changed(json.loads(line), path, value))
                    yield (
                        file,
                        [*lines[:index], damaged, *lines[index + 1 :]],
                        f"line {index + 1} {path}: {value!r:.30}",
                    )


def check_verbs(sweep: Path, tmp_path: Path, capsys, count: int, seed: int) -> None:
    rng = random.Random(seed)
    cases = list(damages(sweep, rng))
    by_file = [list(group) for _, group in itertools.groupby(cases, key=lambda case: case[0])]
    for n in range(count):
        file, lines, description = rng.choice(by_file[n % len(by_file)])
        folder = shutil.copytree(sweep, tmp_path / f"{seed}-{n}")
        write_lines(folder / "0" / file, lines)
        try:
            outcomes(folder, file, capsys)
        except Exception as error:
            raise AssertionError(f"{file}, {description}: {error!r}") from error
        shutil.rmtree(folder)


def test_every_reading_verb_ends_in_order_whatever_the_damage(sweep, tmp_path, capsys):
    check_verbs(sweep, tmp_path, capsys, 27, 0)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_reading_verb_ends_in_order_in_many_more_damages(sweep, tmp_path, capsys, seed):
    check_verbs(sweep, tmp_path, capsys, 200, seed)


TEXTS = ("id", "problem_id", "prompt", "prefix", "response", "gold", "benchmark")
LEGAL = {
    **dict.fromkeys(TEXTS, ["alien"]),
    **dict.fromkeys(("kept", "finished"), [True]),
    **dict.fromkeys(("prompt_position", "base"), [10**9]),
    **dict.fromkeys(("state", "branch"), [None, 10**9]),
    **dict.fromkeys(("reward", "advantage", "value", "alpha"), [None, -5, 2.5, 10**9, 10**23]),
    **dict.fromkeys(("anchors", "answers", "prompt_ids"), [[]]),
    **{"outcome": [None], "parent": [None, "alien"], "turns": [[], [[9, 1]]]},
}
"""Of VALUES, those that a rollout from a state may have; each other value of each field is refused."""


def is_legal(value: object, legal: list) -> bool:
    return any(type(value) is type(one) and value == one for one in legal)


def test_every_field_of_a_rollout_refuses_every_value_of_another_kind(sweep, tmp_path):
    lines = lines_of(sweep / "0" / ROLLOUTS)
    file, index = tmp_path / Path(ROLLOUTS).name, 2
    record = json.loads(lines[index])
    assert record["kind"] == "state" and record["parent"] == json.loads(lines[0])["id"]
    accepted = []
    for field, value in itertools.product(record, VALUES):
        write_lines(file, [*lines[:index], encoded(record | {field: value}), *lines[index + 1 :]])
        try:
            read_rollouts(file)
        except DamagedRecord as error:
            assert f"jsonl.gz, line {index + 1}" in str(error) and field in str(error)
        else:
            accepted.append((field, value))
    legal = [
        (field, value) for field, value in itertools.product(record, VALUES) if is_legal(value, LEGAL.get(field, []))
    ]
    assert accepted == legal


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({0: {"parent": "1/10/0/1/0", "kind": "state"}}, "parent"),  # a cycle of two
        ({1: {"parent": "1/10/0/1/0", "kind": "state"}}, "parent"),  # itself
        ({1: {"id": "1/10/0"}}, "id"),
        ({1: {"fork": 10**6}}, "fork"),
        ({0: {"fork": 1}}, "fork"),
        ({0: {"parent": "x"}}, "parent"),
        ({0: {"kind": "eval"}}, "kind"),
        ({0: {"step": 2}}, "step"),
        ({0: {"answers": [[3, 2]]}}, "answers"),
        ({0: {"answers": [[0, 10**6]]}}, "answers"),
        ({0: {"turns": [[10**6, 0.5]]}}, "turns"),
        ({0: {"anchors": [10**6]}}, "anchors"),
        ({0: {"token_ids": [10**9]}}, r"token_ids\[0\]"),
        ({0: {"alien": 1}}, "alien"),
    ],
)
def test_fields_that_contradict_each_other_are_named(sweep, tmp_path, changes, field):
    lines = lines_of(sweep / "0" / ROLLOUTS)
    file = tmp_path / Path(ROLLOUTS).name
    for index, values in changes.items():
        lines[index] = encoded(json.loads(lines[index]) | values)
    write_lines(file, lines)
    with pytest.raises(DamagedRecord, match=rf"jsonl.gz, line \d+, field {field}: "):
        read_rollouts(file)


def test_every_damaged_line_of_metrics_is_refused_by_readers_and_set_aside_by_a_resumed_run(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    record = {"step": 1, "kind": "train", "reward/mean": 0.5}
    bad = list(LINES)
    for field, value in itertools.product(record, [MISSING, *VALUES]):
        legal = {"step": [10**9], "reward/mean": [-5, 2.5, 10**9, 10**23, 1e308, MISSING]}.get(field, [])
        if not is_legal(value, legal):
            bad.append(encoded(changed(record, (field,), value)))
    for line in bad:
        write_lines(run.metrics, [encoded(record), line])
        with pytest.raises(DamagedRecord, match=r"metrics.jsonl, line 2(, field \S+)?: "):
            read_metrics(run.metrics)
    write_lines(run.metrics, [encoded(record), *bad])
    MetricsWriter(run, resume_step=1)
    assert read_metrics(run.metrics) == [record]
    assert capsys.readouterr().err.count("is damaged; it was moved to") == len(bad)
    assert (tmp_path / "metrics.damaged.jsonl").read_bytes().count(b"\n") == len(bad)


@pytest.mark.parametrize("verb", ["report", "show", "analyse", "compare", "runs", "train", "eval", "export", "sample"])
@pytest.mark.parametrize("file", ["provenance.json", "checkpoints/3/host/metadata"])
def test_a_run_of_another_format_is_refused_by_name_in_every_verb_that_reads_the_file(
    sweep, tmp_path, capsys, verb, file
):
    folder = shutil.copytree(sweep, tmp_path / "sweep")
    run = folder / "0"
    (run / file).parent.mkdir(parents=True, exist_ok=True)
    (run / file).write_text('{"format": 99, "alien": 1e400}')
    config = str(run / "config.yaml")
    command = {
        "compare": [str(run), str(folder / "1")],
        "runs": [str(folder), "--unfold"],
        "train": [config, "--resume", str(run)],
        "eval": [config, "--run", str(run)],
        "sample": [config, "--run", str(run), "--prompt", "x"],
        "export": [str(run), str(tmp_path / "out")],
    }.get(verb, [str(run)])
    code = main([verb, *command])
    said = capsys.readouterr()
    text = said.err + said.out
    if file != "provenance.json" and verb not in ("train", "eval", "export", "sample"):
        assert "found format" not in text, "no checkpoint is read"
        return
    assert code == (0 if verb == "runs" else 2), text
    assert "found format 99, expected" in " ".join(text.split()), text
    if verb in ("report", "show"):
        with pytest.raises(ValueError, match="found format 99"):
            fr3e_jax.read_metrics(run)
