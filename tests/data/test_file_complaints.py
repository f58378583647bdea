"""A file of rows that cannot be used is refused with its own fault, and a plain file of rows needs no card."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.datasets import DatasetsTask

ROW = {"q": "1+1?", "a": "2"}


def load(tmp_path, content, name="rows.jsonl", **card):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    fields = {"name": "mine", "verifier": "math", "fields": {"question": "q", "answer": "a"}, "splits": {"test": name}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(fields | card))
    task = DatasetsTask(DataConfig(task="datasets", root=str(tmp_path), eval=[str(tmp_path / "mine.yaml")]))
    return task.problems("test")


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    "content",
    [json.dumps([ROW]), json.dumps([ROW], indent=2), f"\n  {json.dumps([ROW])}\n", json.dumps([ROW, 3]), lines(ROW)],
)
def test_a_json_array_is_read_whatever_the_file_s_name(tmp_path, content):
    assert load(tmp_path, content)[0].gold == "2"


@pytest.mark.parametrize(
    ("content", "card", "complaint"),
    [
        ("", {}, "is empty; expected rows"),
        ("\n \n", {}, "is empty; expected rows"),
        ("[]", {}, "is empty; expected rows"),
        ('{"q": "caf\xe9", "a": "2"}\n'.encode("latin-1"), {}, "is not UTF-8"),
        ('q,a\n1+1?,2\n', {}, "none of its lines is a JSON object"),
        (b"PAR1\x15\x04\n", {}, "cannot be read as Parquet"),
        (b"version https://git-lfs.github.com/spec/v1\n", {}, "is a pointer of Git LFS; expected the file itself"),
        (lines(ROW).encode("utf-16"), {}, "is UTF-16; expected UTF-8"),
        (lines([1], [2]), {}, "none of its lines is a JSON object"),
        (lines({"prompt": "1+1?", "a": "2"}), {}, "fields.question (q) is missing; the rows have prompt, a"),
        (lines({"q": " ", "a": "2"}), {}, "fields.question (q) is empty or missing"),
        (lines({"q": "1+1?", "gold": "2"}), {}, "fields.answer (a) is missing; the rows have q, gold"),
        (lines({"q": "1+1?", "a": ["2"]}), {}, "fields.answer (a) is a list; expected a text or number: a[0], or"),
        (lines({"q": "1+1?", "a": {"text": "2"}}), {}, "fields.answer (a) is a mapping; expected a text or number: a"),
        (
            lines({"q": [{"role": "usr", "content": "1+1?"}], "a": "2"}),
            {},
            "fields.question (q) has in message 0 the role 'usr'; nearest: user",
        ),
        (lines({"q": ["1+1?"], "a": "2"}), {}, "fields.question (q) is a list; expected a text or number: q[0]"),
        (lines({"q": "1+1?", "a": True}), {}, "fields.answer (a) is true; expected a text or number; change the card"),
        (lines({"q": "1+1?", "a": "{2"}), {}, "fields.answer (a) is '{2'; expected a text whose braces close"),
        (
            lines({**ROW, "level": 3}, {**ROW, "level": 4}),
            {"filters": {"level": ["3"]}},
            "filters.level keeps ['3']; the rows have 3, 4",
        ),
        (
            lines(ROW),
            {"fields": {"question": "q", "answer": {"path": "a", "after_last": "#### "}}},
            "fields.answer (a) is '2'; expected a text with the marker '#### ' (after_last); change the card or",
        ),
    ],
)  # fmt: skip
def test_a_file_without_a_problem_is_refused_with_its_own_fault(tmp_path, content, card, complaint):
    with pytest.raises((ConfigError, ValueError)) as error:
        load(tmp_path, content, **card)
    assert complaint in str(error.value) and "\n" not in str(error.value)
    assert "rows.jsonl" in str(error.value)


@pytest.mark.parametrize(
    ("value", "gold"),
    [
        (Decimal("10.00"), "10"), (Decimal("0.250"), "0.25"), (Decimal("-3"), "-3"), (Decimal("1E+3"), "1000"),
        (Decimal("12345678901234567890.5"), "12345678901234567890.5"), (Decimal("0.00"), "0"),
        (Decimal("1e-7"), "0.0000001"),
        (Decimal("-0.5"), "-0.5"), (Decimal("100"), "100"), (Decimal("99999999999999999999"), "99999999999999999999"),
    ],
)  # fmt: skip
def test_a_decimal_of_parquet_is_an_answer(tmp_path, value, gold):
    column = pyarrow.array([value], pyarrow.decimal128(38, 10))
    pyarrow.parquet.write_table(pyarrow.table({"q": ["1?"], "a": column}), tmp_path / "rows.parquet")
    content = (tmp_path / "rows.parquet").read_bytes()
    assert load(tmp_path, content, "rows.parquet")[0].gold == gold


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"question": "1+1?", "answer": "2"}, "own.jsonl"), ({"prompt": "1+1?", "gold": 2}, "own.jsonl"),
        ({"problem": "1+1?", "answer": 2.0}, "own rows.jsonl"), ({"question": "1+1?", "gold": "2"}, "own.json"),
        ({"prompt": "1+1?", "answer": "2", "level": 3}, "1.own.jsonl"), ({"Question": "1+1?", "ANSWER": 2}, "own.json"),
        ({"question": "1+1?", "answer": "Add.\n#### 2"}, "own.jsonl"), ({"prompt": "1+1?", "gold": ["2"]}, "own.jsonl"),
        ({"problem": "1+1?", "answer": r"So \boxed{2}"}, "own.jsonl"),
        ({"prompt": [{"role": "user", "content": "1+1?"}], "answer": "2"}, "own.jsonl"),
        ({"data": [{"question": "1+1?", "answer": "2"}]}, "own.json"),
        ('[{"question": "1+1?", "answer": "2"}]', "own.jsonl"), ('\ufeff[{"query": "1+1?", "gold": 2}]', "own.jsonl"),
        ({"question": "1+1?", "answer": "Add.\n####2"}, "own.jsonl"), ('question, answer\n"1+1?", "2"\n', "own.csv"),
        ({"question": "1+1?", "answer": "#### Sum\nAdd: \\boxed{2}"}, "own.jsonl"),
        ({"prompt": "1+1?", "reward_model.ground_truth": "2"}, "own.jsonl"), ("question,answer\n1+1?,2\n", "own.csv"),
        ('\ufeffanswer;question\n"2";"1+1?"\n', "own.csv"), ("gold\tproblem\r\n2\t1+1?\r\n", "own.tsv"),
        ('question,answer\n"1+1?",2\n1,2,3\nno answer\n', "own.csv"),
        ("prompt,answer\n\"[{'role': 'user', 'content': '1+1?'}]\",2\n", "own.csv"),
    ],
)  # fmt: skip
def test_a_file_of_rows_needs_no_card(tmp_path, row, name):
    (tmp_path / name).write_text(row if isinstance(row, str) else lines(row))
    for root, entry in (("", str(tmp_path / name)), (str(tmp_path), name)):
        task = DatasetsTask(DataConfig(task="datasets", root=root, train=[entry], eval=[entry]))
        problem = task.problems("train")[0]
        assert (problem.prompt, problem.gold) == ("1+1?", "2")
        assert task.verifier()(problem, r"so \boxed{2}", True) is not None


def test_answers_of_rows_without_a_card_may_be_texts_and_lists(tmp_path):
    (tmp_path / "own.jsonl").write_text(
        lines({"question": "1", "answer": "1"}, {"question": "2", "answer": ["2", "two"]})
    )
    problems = DatasetsTask(DataConfig(task="datasets", train=[str(tmp_path / "own.jsonl")])).parts["train"][0].problems
    assert [problem.gold for problem in problems] == ["1", "2"] and problems[1].extra["golds"] == ("2", "two")


@pytest.mark.parametrize(
    ("row", "shown", "gold"),
    [
        ({"choices": ["Rome", "Paris"], "answer": 1}, "\n(A) Rome\n(B) Paris", "B"),
        ({"options": ["Rome", "Paris"], "answer": "B"}, "\n(A) Rome\n(B) Paris", "B"),
        ({"choices": {"text": ["Rome", "Paris"], "label": ["A", "B"]}, "answer": "B"}, "\n(A) Rome\n(B) Paris", "B"),
        ({"choices": {"text": ["Rome", "Paris"], "label": ["1", "2"]}, "answer": "2"}, "\n(A) Rome\n(B) Paris", "B"),
        ({"options": "['Rome'\n 'Paris']", "answer": "1"}, "\n(A) Rome\n(B) Paris", "B"),  # pandas writes CSV so
        ({"options": [7, 8.5], "answer": "8.5"}, "\n(A) 7\n(B) 8.5", "8.5"),
        ({"options": [], "answer": 1}, "", "1"),
        ({"choices": None, "options": "none", "answer": 1}, "", "1"),
    ],
)
def test_choices_of_rows_without_a_card_follow_the_question(tmp_path, row, shown, gold):
    (tmp_path / "own.jsonl").write_text(lines({"question": "Which?", **row}))
    task = DatasetsTask(DataConfig(task="datasets", train=[str(tmp_path / "own.jsonl")]))
    problem = task.problems("train")[0]
    assert (problem.prompt, problem.gold) == ("Which?" + shown, gold)
    verdict = task.verifier()(problem, rf"\boxed{{{'Paris' if 'Paris' in shown else gold}}}", True)
    assert verdict.right


def test_answers_that_name_no_choice_or_two_are_dropped(tmp_path):
    """They would stop a run that meets them: the verifier knows no right letter."""
    rows = [{"question": f"{i}?", "choices": "['1', '0']", "answer": "B"} for i in range(20)]
    rows += [{"question": "Two?", "choices": "['1', '0']", "answer": "1"}, {"question": "None?", "answer": "2"}]
    rows += [{"question": "Beyond?", "choices": "['1', '0']", "answer": "C"}]
    rows += [{"question": "Many?", "choices": list(range(27)), "answer": 26}]
    (tmp_path / "own.jsonl").write_text(lines(*rows))
    task = DatasetsTask(DataConfig(task="datasets", train=[str(tmp_path / "own.jsonl")]))
    assert len(task.problems("train")) == 20 and task.parts["train"][0].dropped == {
        "unreadable_gold": 3,
        "unreadable_choices": 1,
    }


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (lines({"q": "1", "a": "2"}), "has the columns q, a; expected the question in one of question, prompt,"),
        (lines({"query": "1", "a": "2"}), "expected the answer in one of answer, gold, ground_truth,"),
        (
            lines({"question": "1", "answer": True}),
            "is true; expected a text or number; change them, or write a card",
        ),
        (("own.jsonl", ""), "is empty; expected rows"),
        (("own.json", ""), "is empty; expected rows"),
        (("own.parquet", ""), "is empty; expected rows"),
        (("own.csv", "question,answer\n"), "is empty; expected rows"),
        (("own.json", "[1, 2]"), "has no usable row; expected JSON objects, or lines of CSV"),
        (("own.csv", "question,answer\n1,2,3\n"), "has no usable row; expected JSON objects, or lines of CSV"),
        (("own.csv", "question,answer,answer\n1,2,3\n"), "has the column 'answer' twice; rename one of them"),
        (("own.csv", 'question,answer\n"1,2\n'), "cannot be read as CSV (unexpected end of data)"),
        (
            ("own.json", '{"question": ["1"], "answer": ["2"]}'),
            "holds columns (question, answer); expected one list",
        ),
        (("own.json", '{"a": [{"q": 1}], "b": [{"q": 1}]}'), "holds several lists of rows (a, b); expected one list"),
        (("own.txt", "1"), "has a suffix that no reader knows; expected a file of rows (.jsonl, .ndjson, .json, .csv"),
    ],
)
def test_a_file_of_rows_with_other_columns_needs_a_card(tmp_path, content, complaint):
    name, content = ("own.jsonl", content) if isinstance(content, str) else content
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as error:
        DatasetsTask(DataConfig(task="datasets", train=[str(tmp_path / name)]))
    assert complaint in str(error.value)


SYSTEM, TURN = {"role": "system", "content": "Add."}, {"role": "user", "content": "1+1? Box it."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "1+1? Box it.", "image": None}]}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([TURN], "1+1?"),
        ([PARTS], "1+1?"),
        ([SYSTEM, TURN], "system: Add.\n\nuser: 1+1?"),
        ([TURN, {"role": "assistant", "content": "<think>"}], "user: 1+1?\n\nassistant: <think>"),
        (json.dumps([SYSTEM, TURN]), "system: Add.\n\nuser: 1+1?"),
    ],
)
def test_messages_are_questions_in_files_of_every_kind(tmp_path, name, messages, prompt):
    """The steps of the field are those of the user's last message."""
    row, file = {"q": messages, "a": "2"}, tmp_path / name
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
        content = file.read_bytes()
    else:
        content = json.dumps([row]) if name.endswith("json") else lines(row)
    rule = {"path": "q", "strip_suffix": " Box it."}
    (problem,) = load(tmp_path, content, name, fields={"question": rule, "answer": "a"})
    assert (problem.prompt, problem.gold) == (prompt, "2")


def test_a_file_of_messages_needs_no_card(tmp_path):
    (tmp_path / "own.jsonl").write_text(lines({"messages": [SYSTEM, TURN], "answer": "2"}))
    task = DatasetsTask(DataConfig(task="datasets", train=[str(tmp_path / "own.jsonl")]))
    assert task.problems("train")[0].prompt.messages == (SYSTEM, TURN)
