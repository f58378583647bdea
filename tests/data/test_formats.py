"""Rows of JSONL, JSON, Parquet and TFDS files; errors for damaged and missing files say what to change."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from fr3e_jax.data.formats import find_files, plain, read_file, read_tfds

ROWS = [{"question": "1+1?", "answer": 2, "prompt": [{"content": "é"}]}, {"question": "2?", "answer": None}]


def read(path, declared="auto"):
    dropped = Counter()
    return list(read_file(path, declared, dropped)), +dropped


@pytest.fixture
def parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_all_formats_give_the_same_rows(tmp_path, parquet):
    lines = "\n".join(map(json.dumps, ROWS)).encode()
    (tmp_path / "rows.jsonl").write_bytes(lines)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    (tmp_path / "rows.json.gz").write_bytes(gzip.compress(json.dumps(ROWS).encode()))
    for name in ("rows.jsonl", "rows.jsonl.gz", "rows.json", "rows.json.gz", "rows.parquet"):
        rows, dropped = read(tmp_path / name)
        assert [row["question"] for row in rows] == ["1+1?", "2?"]
        assert rows[0]["prompt"][0]["content"] == "é" and rows[1]["answer"] is None and not dropped


def test_one_json_object_is_one_row_and_other_values_are_counted(tmp_path):
    (tmp_path / "one.json").write_text('{"problem": "x"}')
    (tmp_path / "mixed.json").write_text('[{"problem": "x"}, 3, null, ["a"]]')
    assert read(tmp_path / "one.json") == ([{"problem": "x"}], {})
    assert read(tmp_path / "mixed.json") == ([{"problem": "x"}], {"malformed_row": 3})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.json", b'[{"a": 1}, {"a"', r"cut\.json cannot be read as JSON .*set its format"),
        ("cut.json.gz", gzip.compress(b"[]" * 500, mtime=0)[:-9], r"cut\.json\.gz cannot be read as JSON"),
        ("cut.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 500, mtime=0)[:-9], r"is not a complete gzip file"),
        ("deep.json", b"[" * 100_000, r"deep\.json cannot be read as JSON"),
        ("page.parquet", b"<html>not found</html>", r"page\.parquet cannot be read as Parquet .*download it again"),
        ("rows.csv", b"a\n\xff", r"rows\.csv cannot be read as CSV \(it is not UTF-8\)"),
        ("rows.xls", b"a,b", r"rows\.xls has the suffix '\.xls'; expected one of \.jsonl, .*, or set format"),
    ],
)
def test_damaged_file_is_an_error(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "rows", "malformed"),
    [
        (b"\xef\xbb\xbf" + b'{"a": 1}\n{"a": 2}\n', 2, 0),
        (b'{"a": 1}\n' + b'{"a": ' * 100_000 + b'\n{"a": 2}\n', 2, 1),
        (b'{"a": 1}\n\x00\x00\x00\n{"a": "\x00"}\n', 1, 2),
        (b"\n \n", 0, 0),
        (b'{"a": 1}\n\xff\xfe\n[1]\n3\n', 1, 3),
    ],
    ids=["BOM", "deeply nested", "NUL", "blank", "no UTF-8, no objects"],
)
def test_a_bad_line_of_jsonl_is_counted_and_the_others_are_read(tmp_path, content, rows, malformed):
    (tmp_path / "rows.jsonl").write_bytes(content)
    found, dropped = read(tmp_path / "rows.jsonl")
    assert (len(found), dropped["malformed_row"]) == (rows, malformed)


def test_flipped_parquet_is_named(parquet):
    whole = parquet.read_bytes()
    for place in range(4, len(whole)):
        parquet.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read(parquet)
        except ValueError as error:
            assert str(parquet) in str(error) and "\n" not in str(error)


def test_a_row_of_tfds_that_cannot_be_read_is_named(monkeypatch):
    monkeypatch.setattr("fr3e_jax.data.formats._open_tfds", lambda *_: [{"a": b"good"}, {"a": b"\xff"}])
    rows = read_tfds("math", "train", "/data", "card x")
    assert next(rows) == {"a": "good"}
    with pytest.raises(ValueError, match="card x: row 1 of TFDS math in /data cannot be read .UnicodeDecodeError"):
        next(rows)


def test_declared_format_wins_over_the_suffix(tmp_path):
    (tmp_path / "rows.txt").write_text('{"a": 1}\n{"a": 2}\n')
    assert read(tmp_path / "rows.txt", "jsonl")[0] == [{"a": 1}, {"a": 2}]


def test_first_pattern_that_matches_is_taken_and_its_shards_are_ordered(tmp_path):
    for name in ("b/train-2.parquet", "b/train-1.parquet", "c/train.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    root = str(tmp_path)
    assert find_files(["a.jsonl", "b/train-*.parquet", "c/train.jsonl"], root, "x") == [
        tmp_path / "b/train-1.parquet",
        tmp_path / "b/train-2.parquet",
    ]
    assert find_files([str(tmp_path / "c/train.jsonl")], "/elsewhere", "x") == [tmp_path / "c/train.jsonl"]


def test_files_are_found_under_a_relative_root_and_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows[1].jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert [path.name for path in find_files(["rows[1].jsonl"], "data", "x")] == ["rows[1].jsonl"]
    assert [path.name for path in find_files(["data/*.jsonl"], "", "x")] == ["rows[1].jsonl"]


@pytest.mark.parametrize(("root", "said"), [("", r"data\.root=\(empty: the working directory\)"), ("there", "there")])
def test_missing_file_is_reported_with_root_and_patterns(root, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"no file of card x under .*{said}; looked for a\.jsonl, b/\*\.json;"):
        find_files(["a.jsonl", "b/*.json"], root, "card x")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A custom TFDS builder, prepared without TensorFlow; it is read without the builder's code."""
    import tensorflow_datasets as tfds

    class TinyQuestions(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.0")

        def _info(self):
            text, number = tfds.features.Text(), tfds.features.Scalar(np.int32)
            features = {"question": text, "answer": text, "level": number, "golds": tfds.features.Sequence(text)}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(12), "test": self._generate_examples(3)}

        def _generate_examples(self, count):
            for i in range(count):
                yield i, {"question": f"{i} é?", "answer": f"so\n#### {i}", "level": i, "golds": [str(i), "x"]}

    folder = tmp_path_factory.mktemp("tfds")
    TinyQuestions(data_dir=folder, file_format="array_record").download_and_prepare()
    return str(folder)


def test_tfds_rows_have_plain_python_values(prepared):
    rows = sorted(read_tfds("tiny_questions", "test", prepared, "card x"), key=lambda row: row["level"])
    assert rows[2] == {"question": "2 é?", "answer": "so\n#### 2", "level": 2, "golds": ["2", "x"]}
    assert type(rows[2]["level"]) is int and len(rows) == 3
    order = [row["level"] for row in read_tfds("tiny_questions:1.2.0", "train", prepared, "card x")]
    assert sorted(order) == list(range(12))
    assert order == [row["level"] for row in read_tfds("tiny_questions", "train", prepared, "card x")]


def test_missing_tfds_dataset_or_split_is_reported(prepared):
    with pytest.raises(
        FileNotFoundError, match=r"card x: no TFDS dataset tiny_answers is prepared in .*data\.root=DIR"
    ):
        list(read_tfds("tiny_answers", "train", prepared, "card x"))
    with pytest.raises(ValueError, match=r"tiny_questions has no split 'validation'; it has .*train"):
        list(read_tfds("tiny_questions", "validation", prepared, "card x"))


def test_plain_converts_bytes_arrays_and_scalars():
    value = {
        "a": b"\xc3\xa9",
        "b": np.array([1, 2]),
        "c": [np.float32(0.5), np.array([b"x"], object)],
        "d": np.str_("s"),
    }
    assert plain(value) == {"a": "é", "b": [1, 2], "c": [0.5, ["x"]], "d": "s"}
