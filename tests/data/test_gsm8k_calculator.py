"""Calculator annotations from small files, and from the real files if they lie beside the repository."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path

import pytest

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.gsm8k_calculator import CalculatorTask

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "datasets" / "gsm8k"


def write(path, *answers, tail=""):
    text = "".join(json.dumps({"question": "?", "answer": answer}) + "\n" for answer in answers) + tail
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def pairs(problems):
    return [(problem.prompt, problem.gold) for problem in problems]


@pytest.fixture
def task(tmp_path):
    train = write(
        tmp_path / "train.jsonl.gz",
        "She sold 48/2 = <<48/2=24>>24 clips, and <<48+24=72>>72.\n#### 72",
        "<<48+24=72>> <<1/8*100=12.5>> <<.5*2=1>> <<10/4=2.50>>",
        "<<3*2=>> <<=6>> <<2x3=6>> <<2+2=four>> <<4/8=1/2>> <<1+1=2=2>> <<1 + 1=2>> <<5>>",
        "<<7+7=14>> <<7+7=15>>",
    )
    write(tmp_path / "test.jsonl.gz", "<<7+7=14>> <<9-10=-1>>", "no annotation")
    return CalculatorTask(DataConfig(task="gsm8k_calculator", path=train))


def test_prompts_are_left_sides_and_golds_right_sides_exactly(task):
    assert pairs(task.problems("train")) == [
        ("48/2=", "24"),
        ("48+24=", "72"),
        ("1/8*100=", "12.5"),
        (".5*2=", "1"),
        ("10/4=", "2.50"),
    ]
    assert pairs(task.problems("test")) == [("7+7=", "14"), ("9-10=", "-1")]
    ids = [problem.id for split in ("train", "test") for problem in task.problems(split)]
    assert len(set(ids)) == 7


def test_dropped_annotations_are_counted_by_reason(task):
    assert task.dropped == {
        "train/duplicate": 1,
        "train/empty_side": 3,
        "train/other_characters": 3,
        "train/result_not_a_number": 2,
        "train/in_held_out": 2,
    }


def test_demonstrations_show_each_training_problem_once_per_epoch(task):
    epochs = [[task.demonstration(i, 0.0) for i in range(5 * e, 5 * e + 5)] for e in range(4)]
    for epoch in epochs:
        assert sorted((d.prompt, d.response) for d in epoch) == sorted(pairs(task.problems("train")))
    assert len({tuple(d.prompt for d in epoch) for epoch in epochs}) > 1
    assert task.demonstration(3, 1.0) == epochs[0][3]


def test_reward_is_equality_with_the_right_side(task):
    problem = task.problems("train")[4]
    verifier = task.verifier()
    assert [verifier(problem, text, True) for text in ("2.50", "2.5", "2.50 ")] == [1, 0, 0]
    assert verifier(problem, "2.50", False) == 0


def test_named_held_out_file_is_the_test_split(tmp_path):
    train = write(tmp_path / "rows.jsonl", "<<1+1=2>> <<2+2=4>>")
    held_out = write(tmp_path / "other.jsonl", "<<2+2=4>>")
    task = CalculatorTask(DataConfig(path=train, eval_path=held_out))
    assert pairs(task.problems("train")) == [("1+1=", "2")]
    assert pairs(task.problems("test")) == [("2+2=", "4")]


def test_share_of_the_prompts_is_held_out_without_a_held_out_file(tmp_path):
    path = write(tmp_path / "train.jsonl", *(f"<<{n}+1={n + 1}>> <<{n}+1={n + 2}>>" for n in range(1000)))
    task = CalculatorTask(DataConfig(path=path))
    parts = [{p.prompt for p in task.problems(split)} for split in ("train", "development", "test")]
    train, development, test = parts
    assert len(train) + len(development) + len(test) == len(set().union(*parts)) == 1000
    assert 30 < len(development) < 70 and 30 < len(test) < 70
    assert task.dropped == {}


def test_bad_rows_are_counted_and_reported_with_file_and_line(tmp_path, caplog):
    tail = '{"answer": \n\n[1]\n{"answer": null}\n{"question": "?"}\n'
    path = write(tmp_path / "rows.jsonl", "<<1+1=2>>", tail=tail)
    held_out = write(tmp_path / "held.jsonl", "<<2+2=4>>")
    with caplog.at_level(logging.WARNING):
        task = CalculatorTask(DataConfig(path=path, eval_path=held_out))
    assert task.dropped == {"train/malformed_row": 2, "train/no_answer": 2}
    assert len(task.problems("train")) == 1
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith(f"{path}:2: row dropped: ")
    assert messages[1] == f"{path}:4: row dropped: expected a JSON object, found list"
    caplog.clear()
    write(tmp_path / "rows.jsonl", "<<1+1=2>>", tail=b"\xff\n".decode("latin-1") * 50)
    assert CalculatorTask(DataConfig(path=path, eval_path=held_out)).dropped["train/malformed_row"] == 50
    assert len(caplog.records) == 5, "only the first few are logged"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"data\.path is empty, but this task reads a JSONL file; set data\.path="),
        ({"path": "nowhere.jsonl"}, r"data\.path is 'nowhere\.jsonl', which does not exist"),
        ({"path": "."}, r"data\.path is '\.', which is a directory"),
        ({"path": "rows.jsonl", "eval_path": "nowhere.gz"}, r"data\.eval_path is 'nowhere\.gz', which does not exist"),
    ],
)
def test_missing_file_is_reported_with_its_setting(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", *(f"<<{n}*{n}={n * n}>>" for n in range(50)))
    with pytest.raises(FileNotFoundError, match=message):
        CalculatorTask(DataConfig(**settings))


def test_incomplete_download_is_an_error(tmp_path):
    path = Path(write(tmp_path / "rows.jsonl.gz", *(f"<<{n}*{n}={n * n}>>" for n in range(500))))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"rows\.jsonl\.gz is not a complete gzip file .*download it again"):
        CalculatorTask(DataConfig(path=str(path)))


def test_file_without_annotations_is_an_error_with_the_drop_counts(tmp_path):
    path = write(tmp_path / "rows.jsonl", "<<1+1=two>>", "no annotation")
    with pytest.raises(ValueError, match=r"gives no train problem \(dropped: {'train/other_characters': 1}\)"):
        CalculatorTask(DataConfig(path=path))


@pytest.mark.skipif(not REAL.is_dir(), reason="the real GSM8K files are not beside this repository")
def test_real_files_give_disjoint_splits_and_known_counts():
    task = CalculatorTask(DataConfig(path=str(REAL / "train.jsonl.gz")))
    train, test = task.problems("train"), task.problems("test")
    assert ("12/60=", "0.2") == pairs(train)[0]
    assert ("48/2=", "24") in pairs(test)  # the first annotation of the training file, too
    assert not {p.prompt for p in train} & {p.prompt for p in test}
    assert len(test) > 2500 and len(train) > 8900
    development = {p.prompt for p in task.problems("development")}
    assert len(development) > 400 and not development & {p.prompt for p in (*train, *test)}
    assert task.dropped["test/result_not_a_number"] == 1
    reasons = "train/duplicate train/in_held_out test/duplicate test/result_not_a_number".split()
    assert set(task.dropped) == set(reasons)
