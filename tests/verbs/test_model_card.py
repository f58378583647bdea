"""The model card of an export."""

from __future__ import annotations

import re

import yaml

from fr3e_jax.cli import main
from fr3e_jax.cli.run_selection import saved_config
from fr3e_jax.configuration import load_config
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.verbs.model_card import model_card


def test_an_export_carries_a_card_of_its_run(finished_run, tmp_path):
    directory = tmp_path / "model"
    assert main(["export", str(finished_run), str(directory)]) == 0
    assert (directory / "config.json").is_file()
    _, front, text = (directory / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "tags": ["reinforcement-learning", "rlvr", "fr3e_jax"],
    }
    run = StoredRun.open(finished_run)
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", text, re.MULTILINE))
    tokens = sum(record["tokens/sampled_tokens"] for record in run.training)
    assert rows["sampled tokens"] == f"{tokens:,.0f}" and rows["seed"] == str(run.settings["seed"])
    assert rows["method"] == "fr3e" and rows["data"] == "scripted_task.py:Parity"
    first, last = run.evaluations[0], run.evaluations[-1]
    assert rows["greedy"] == f"{100 * first['greedy']:.1f} | {100 * last['greedy']:.1f}"
    assert f"{last['prompts']} problems of the test split" in text and "temperature 1" in text


def test_a_card_names_the_base_as_the_hub_does_single_sets_settings_and_no_folder(finished_run):
    run, config = StoredRun.open(finished_run), load_config(saved_config(finished_run), training=False)
    config.evaluation.sets = ["aime24 temperature=0.6"]
    vars(run)["provenance"] = {
        "command": "fr3e train /home/me/mine.yaml data.train=[/data/x/a.jsonl] model.path=Org/Name"
    }
    for path, base in (("Org/Name@0123abc", "Org/Name"), ("/home/me/model", None), ("gs://b/model", None)):
        config.model.path = path
        card = model_card(run, config, 2, "float32")
        assert yaml.safe_load(card.split("---\n", 2)[1]).get("base_model") == base
        assert "at temperature 1; sets with settings of their own: aime24 temperature=0.6." in card
        assert "fr3e train mine.yaml data.train=[a.jsonl] model.path=Org/Name\n" in card
