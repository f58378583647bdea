"""Rows of programs whose tests cannot decide are dropped, counted and named when data are loaded."""

from __future__ import annotations

import json

import pytest
import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data import program_checks
from fr3e_jax.data.datasets import DatasetsTask

GOOD = {"q": "Add.", "a": "def add(a, b):\n    return a + b", "t": ["assert add(1, 2) == 3"]}
BAD = {
    "failing_reference": {**GOOD, "a": "def add(a, b):\n    return a - b"},
    "rewarded_empty_program": {**GOOD, "t": ["try:\n    add(1, 2)\nexcept TypeError:\n    pass"]},
    "unusable_tests": {**GOOD, "t": "assert add(1, 2 == 3"},
}


@pytest.fixture
def load(tmp_path):
    def loaded(rows, **fields):
        (tmp_path / "rows.jsonl").write_text(
            "".join(json.dumps({**row, "q": f"{row['q']} {n}"}) + "\n" for n, row in enumerate(rows))
        )
        content = {"name": "mine", "verifier": "code", "fields": {"question": "q", "answer": "a"} | fields}
        content |= {"extra": {"tests": "t", "entry_point": "e"}, "splits": {"test": "rows.jsonl"}}
        content["fields"] = {name: path for name, path in content["fields"].items() if path}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
        return DatasetsTask(DataConfig(task="datasets", root=str(tmp_path), eval=[str(tmp_path / "mine.yaml")]))

    return loaded


def test_rows_whose_tests_cannot_decide_are_dropped_counted_and_named(load, caplog):
    task = load([GOOD, BAD["failing_reference"], GOOD, BAD["unusable_tests"], GOOD, BAD["rewarded_empty_program"]])
    assert [problem.id for problem in task.problems("test")] == ["mine/test/0", "mine/test/2", "mine/test/4"]
    assert task.dropped == {f"mine/test/{reason}": 1 for reason in BAD}
    assert "the tests of 1 of 6 rows cannot decide: mine/test/3 (unusable_tests)" in caplog.text
    assert "2 of 5 rows cannot decide: mine/test/1 (failing_reference), mine/test/5" in caplog.text


@pytest.mark.parametrize("reason", BAD)
def test_data_of_which_most_tests_cannot_decide_are_refused(load, reason):
    with pytest.raises(ConfigError, match=f"1 of 1 rows cannot decide: mine/test/0 .{reason}.; expected tests that"):
        load([BAD[reason]])


def test_rows_without_a_program_of_their_own_need_tests_that_refuse_an_empty_one(load):
    pairs = json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}])
    assert len(load([{"q": "Add.", "t": pairs}], answer="").problems("test")) == 1
    with pytest.raises(ConfigError, match="mine/test/0 .rewarded_empty_program.; expected"):
        load([{"q": "Add.", "t": BAD["rewarded_empty_program"]["t"]}], answer="")


def test_a_sample_of_a_large_split_is_run(load, monkeypatch, caplog):
    monkeypatch.setattr(program_checks, "SAMPLE", 3)
    task = load([*[GOOD] * 3, BAD["failing_reference"], *[GOOD] * 5])
    assert "1 of 3 rows cannot decide: mine/test/3" in caplog.text
    assert len(task.problems("test")) == 8
