"""The overview of `fr3e data`: counts, lengths in tokens, prompts that cannot be spelled, overlaps, examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import Config, DataConfig
from fr3e_jax.data.overview import SAMPLE, measure, overview


@pytest.fixture
def config(tmp_path):
    """Three cards over digits, which the embedded tokenizer can spell; one sum is in training and evaluation."""

    def card(name, rows, split):
        lines = [json.dumps({"q": question, "a": answer}) for question, answer in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        content = {"name": name, "verifier": "exact", "fields": {"question": "q", "answer": "a"}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content | {"splits": {split: f"{name}.jsonl"}}))
        return str(tmp_path / f"{name}.yaml")

    train = [card("sums", [(f"{n}+{n}=", 2 * n) for n in range(20)] + [("9=", None)], "train")]
    train.append(card("long", [("+".join("1" * n) + "=", n) for n in (10, 30)] + [("2+2=", "5")], "train"))
    test = [card("held", [("3+3=", "6"), ("3-3=", 0), ("3+3=", "7")], "test")]
    data = DataConfig(task="datasets", root=str(tmp_path), train=train, eval=test, max_prompt_tokens=20)
    return Config(name="tried", data=data)


def test_overview_has_rows_shares_drops_and_lengths_of_each_set(config):
    found = overview(config)
    assert [(each.name, each.role, each.rows, each.problems) for each in found.sets] == [
        ("sums/train", "train", 21, 20),
        ("long/train", "train", 3, 3),
        ("held/test", "test", 3, 3),
    ]
    sums, long, held = found.sets
    assert (sums.dropped, sums.verifier, held.repeated_questions) == ({"empty_gold": 1}, "exact", 1)
    assert (sums.share, held.share) == (20 / 23, None)
    assert (long.lengths.histogram, long.lengths.too_long) == ([(16, 1), (32, 1), (64, 1)], 1)
    assert (long.lengths.median, long.lengths.longest) == (20, 60)


def test_unknown_verifier_of_a_card_is_reported_before_a_run(config):
    path = Path(config.data.eval[0])
    path.write_text(path.read_text().replace("verifier: exact", "verifier: exakt"))
    with pytest.raises(ConfigError, match=rf"^{path}: there is no verifier 'exakt'; .* did you mean 'exact'"):
        overview(config)


def test_overview_has_overlaps_and_example_prompts(config):
    found = overview(config)
    [overlap] = found.overlaps
    assert overlap.identical == [("sums/train/3", "held/test/0"), ("sums/train/3", "held/test/2")]
    assert found.prompts == [
        ("sums/train/0", "0", "0+0=", [2, 12, 2, 18]),
        ("long/train/0", "10", "1+1+1+1+1+1+1+1+1+1=", [3, 12] * 9 + [3, 18]),
        ("sums/train/1", "2", "1+1=", [3, 12, 3, 18]),
    ]


def test_template_is_applied_and_prompts_that_cannot_be_spelled_are_counted(config):
    config.data.template = "deepseek_math"
    found = overview(config)
    assert found.prompts[0][2].startswith("User: 0+0=\nPlease reason") and found.prompts[0][3] == []
    assert [each.lengths.unspeakable for each in found.sets] == [20, 3, 3]
    assert "character 'U' at position 0" in found.sets[0].lengths.complaint


def test_json_form_of_an_overview_is_plain(config):
    found = json.loads(json.dumps(overview(config).as_json()))
    assert found["overlaps"][0]["share"] == pytest.approx(2 / 3)
    assert found["sets"][1]["lengths"]["histogram"][0] == [16, 1]


def test_large_procedural_set_is_measured_in_part():
    found = overview(Config(name="tried"))
    train, development, test = found.sets
    assert (train.name, train.problems, train.looked_at, train.rows) == ("order/train", 2**31, SAMPLE, None)
    assert test.looked_at == test.problems == development.problems == 4096
    assert [one.role for one in found.sets] == ["train", "development", "test"]
    assert found.overlaps == []


def test_measure_of_no_prompts_is_empty():
    found = measure([], list, 10)
    assert (found.histogram, found.median, found.longest, found.too_long) == ([], 0, 0, 0)
