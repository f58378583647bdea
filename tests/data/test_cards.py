"""Dataset cards are found by name or path and read strictly; a mistake is one line with its place and nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.card_file import read_card
from fr3e_jax.data.cards import card_path, load_named
from fr3e_jax.data.fields import FieldRule

SHIPPED = sorted((Path(__file__).parents[2] / "configs" / "data").glob("*.yaml"))
CARD = {
    "name": "tiny",
    "verifier": "math",
    "fields": {"question": "q", "answer": {"path": "a", "after_last": "#### "}},
    "splits": {"train": "train.jsonl", "test": ["one.jsonl", "two.json"]},
}


@pytest.fixture
def write(tmp_path):
    def written(**changes):
        content = {key: value for key, value in (CARD | changes).items() if value is not None}
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
        return tmp_path / "tiny.yaml"

    return written


def test_card_names_its_files_fields_filters_and_extras(write):
    card = read_card(write(licence="MIT", filters={"level": [3, 4]}, extra={"unit": "meta.unit"}))
    assert (card.name, card.verifier, set(card.splits)) == ("tiny", "math", {"train", "test"})
    split = card.splits["test"]
    assert (split.files, split.format) == (("one.jsonl", "two.json"), "auto")
    assert split.fields == {"question": FieldRule("q"), "answer": FieldRule("a", after_last="#### ")}
    assert (split.filters, split.extra) == ({"level": (3, 4)}, {"unit": "meta.unit"})


def test_split_overrides_the_card_entry_by_entry(write):
    other = {"files": "t.parquet", "fields": {"answer": "b"}, "filters": {"level": [1]}}
    card = read_card(write(splits={"train": "train.jsonl", "easy": other}, filters={"kind": ["x"]}))
    assert card.splits["easy"].fields == {"question": FieldRule("q"), "answer": FieldRule("b")}
    assert card.splits["easy"].filters == {"kind": ("x",), "level": (1,)}
    assert card.splits["train"].filters == {"kind": ("x",)}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_card_is_valid_and_named_like_its_file(path):
    assert read_card(path).name == path.stem
    assert {"title", "source", "licence"} <= yaml.safe_load(path.read_text()).keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verifer": "math"}, "verifer is not part of a dataset card; nearest: verifier"),
        ({"verifier": None}, "lacks verifier; a dataset card needs name, verifier, splits there"),
        ({"splits": {}}, "lacks splits"),
        ({"splits": ["train.jsonl"]}, r"splits is \['train.jsonl'\]; expected a mapping from split to its files"),
        ({"splits": {"train": 3}}, "splits.train is 3; expected a mapping with .*files"),
        ({"splits": {"train": {"fils": "x"}}}, "splits.train.fils is not part of a dataset card; nearest: files"),
        ({"splits": {"train": []}}, "splits.train names no files; expected a path or a list of paths under data.root"),
        ({"splits": {"train": [3]}}, r"splits.train.files is \[3\]; expected a path or a list of paths"),
        ({"splits": {"train": {"format": "tfds"}}}, "format is tfds, which needs builder and builder_split"),
        ({"format": "jsnl"}, "format is 'jsnl'; nearest: json"),
        ({"name": "tiny/er"}, "name is 'tiny/er'; expected letters, digits, '_', '.' and '-' only"),
        ({"name": ["tiny"]}, r"name is \['tiny'\]; expected a text"),
        ({"fields": {"question": "q"}}, "fields lacks answer; a dataset card needs question, answer there"),
        ({"fields": {"question": "q", "anser": "a"}}, "fields.anser is not part of a dataset card; nearest: answer"),
        ({"fields": {"question": "q[", "answer": "a"}}, r"fields.question.path: 'q\[' is not a path to a field"),
        ({"fields": {"question": 3, "answer": "a"}}, "fields.question is 3; expected a mapping with .*path"),
        (
            {"fields": {"question": "q", "answer": {"path": "a", "last_boxed": "yes"}}},
            "fields.answer.last_boxed is 'yes'; expected true or false",
        ),
        (
            {"fields": {"question": "q", "answer": {"path": "a", "remove": "("}}},
            r"fields.answer.remove is '\(', which is not a regular expression",
        ),
        ({"filters": {"level": 3}}, "filters.level is 3; expected the list of values that are kept"),
        ({"extra": {"dataset": "source"}}, "extra.dataset: the loader sets dataset itself; use another name"),
        ({"extra": {"unit": "["}}, "extra.unit: .* is not a path to a field"),
    ],
)
def test_mistake_in_a_card_is_one_line_with_file_place_and_remedy(write, changes, message):
    path = write(**changes)
    with pytest.raises(ConfigError, match=message) as caught:
        read_card(path)
    assert str(caught.value).startswith(f"{path}") and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n", "a: [1\n", "name: a\nname: b\n", "", "\xff"])
def test_card_that_is_not_a_mapping_is_refused(tmp_path, text):
    (tmp_path / "tiny.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="tiny.yaml"):
        read_card(tmp_path / "tiny.yaml")


def test_cards_are_found_beside_the_run_then_in_the_repository_then_by_path(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    assert card_path("gsm8k") in SHIPPED
    own = tmp_path / "configs" / "data" / "gsm8k.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(yaml.safe_dump(CARD))
    assert card_path("gsm8k").resolve() == own
    assert load_named(f"{write()}/test", "train")[1] == "test"
    assert load_named(str(write()), "train")[1] == "train"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8", "no dataset card 'gsm8' in .*; nearest: gsm8k, or give a path to a YAML file"),
        ("nowhere.yaml/train", "no dataset card nowhere.yaml; give the path"),
        ("math500", "math500: .* has no split 'train'; expected math500/test"),
        ("gsm8k/tran", "gsm8k/tran: .* has no split 'tran'; expected gsm8k/train, gsm8k/test"),
    ],
)
def test_missing_card_or_split_is_reported_with_the_nearest_name(name, message):
    with pytest.raises(ConfigError, match=message):
        load_named(name, "train")
