"""Rows become problems with the values that their verifier needs; dropped rows are counted by reason."""

from __future__ import annotations

import json

import pytest
import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.card_file import read_card
from fr3e_jax.data.dataset_split import load_split


@pytest.fixture
def load(tmp_path):
    def loaded(rows, fields=None, **card):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
        fields = {"question": "q", "answer": "a"} | (fields or {})
        content = {"name": "tiny", "verifier": "math", "splits": {"train": "rows.jsonl"}, "fields": fields} | card
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
        return load_split(read_card(tmp_path / "tiny.yaml"), "train", str(tmp_path))

    return loaded


def test_dropped_rows_are_counted_by_reason_and_ids_are_row_numbers(load):
    rows = [
        {"q": "one?", "a": "1"},
        {"q": "no answer?"},
        {"q": "null?", "a": None},
        {"q": "blank?", "a": "  "},
        {"q": "a table?", "a": {"x": 1}},
        {"q": "an open brace?", "a": "\\frac{1}{2"},
        {"q": " ", "a": "1"},
        "not JSON",
        {"q": "one?", "a": "1 "},
        {"q": "one?", "a": "2"},
        {"q": " two? ", "a": 2.0},
    ]
    found = load(rows)
    assert [(p.id, p.prompt, p.gold) for p in found.problems] == [
        ("tiny/train/0", "one?", "1"),
        ("tiny/train/8", "one?", "2"),
        ("tiny/train/9", "two?", "2"),
    ]
    assert found.dropped == {
        "empty_gold": 3,
        "unreadable_gold": 2,
        "empty_question": 1,
        "malformed_row": 1,
        "duplicate": 1,
    }
    assert found.rows == 11 == len(found.problems) + sum(found.dropped.values())
    assert found.repeated_questions == 1 and found.name == "tiny/train"


def test_filters_keep_listed_numbers_in_either_spelling(load):
    rows = [{"q": f"{level}?", "a": "1", "level": level} for level in (1, 3, 5.0, None, "3")]
    found = load(rows, filters={"level": [3, 5]})
    assert [problem.prompt for problem in found.problems] == ["3?", "5.0?"]
    assert found.dropped == {"filtered_level": 3}


def test_problem_carries_the_values_that_its_verifier_needs(load):
    rows = [
        {"q": "?", "a": ["1", "1.0\n"], "unit": "m", "multi": False, "type": "Algebra", "level": 5, "tests": ["x"]},
        {"q": "!", "a": "['2']", "unit": None},
    ]
    fields = {"answer": {"path": "a", "unwrap_list": True}, "level": "level", "subject": "type"}
    first, second = load(rows, fields, extra={"unit": "unit", "multiple": "multi", "tests": "tests"}).problems
    assert first.gold == "1"
    assert first.extra == {
        "dataset": "tiny",
        "golds": ("1", "1.0"),
        "unit": "m",
        "multiple": False,
        "subject": "Algebra",
        "level": "5",
        "tests": ("x",),
    }
    assert second.gold == "2" and second.extra == {"dataset": "tiny"}


def test_choices_join_the_question_and_a_numbered_answer_becomes_a_letter(load):
    rows = [
        {"q": "Which?", "a": 1, "c": ["red", "blue"]},
        {"q": "Whose?", "a": "A", "c": ["mine", "yours"]},
        {"q": "Out?", "a": 2, "c": ["in", "side"]},
        {"q": "Cell?", "a": "A", "c": "['of', 'CSV']"},
    ]
    found = load(rows, extra={"choices": "c"})
    assert [(p.prompt, p.gold) for p in found.problems] == [
        ("Which?\n(A) red\n(B) blue", "B"),
        ("Whose?\n(A) mine\n(B) yours", "A"),
        ("Cell?\n(A) of\n(B) CSV", "A"),
    ]
    assert found.problems[0].extra["choices"] == ("red", "blue") and found.dropped == {"unreadable_gold": 1}


def test_solutions_stay_aligned_with_their_problems(load):
    rows = [{"q": "1?", "a": "1", "s": "so 1"}, {"q": "2?", "a": None, "s": "x"}, {"q": "3?", "a": "3"}]
    assert load(rows, {"solution": "s"}).solutions == ("so 1", None)


def test_field_without_strip_keeps_its_white_space(load):
    fields = {"question": {"path": "q", "strip": False}, "answer": {"path": "a", "strip": False}}
    problem = load([{"q": "def f(x):\n", "a": "    return x\n"}], fields).problems[0]
    assert problem.prompt + problem.gold == "def f(x):\n    return x\n"


def test_card_whose_fields_do_not_match_its_file_is_an_error(load):
    with pytest.raises(
        ConfigError, match=r"split train gives no problem \(dropped: {'empty_question': 2}\): fields.question"
    ):
        load([{"question": "?", "answer": "1"}] * 2)


def test_a_file_without_rows_is_called_empty(load, tmp_path):
    with pytest.raises(ConfigError, match=f"split train has no rows: {tmp_path}/rows.jsonl is empty"):
        load(["", " "])
