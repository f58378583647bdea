"""The model card of an export, and its upload to a hub that is not there."""

from __future__ import annotations

import re

import pytest
import yaml

from fr3e_jax.cli import main
from fr3e_jax.cli.run_selection import saved_config
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.verbs.model_card import model_card, push


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the hub's client: calls that it got; ``hub.fails`` is raised by an upload."""
    import huggingface_hub

    class Api:
        endpoint, calls, fails, token = "https://hub", [], None, "t"

        def whoami(self):
            if not Api.token:
                raise huggingface_hub.errors.LocalTokenNotFoundError("Token is required")

        def create_repo(self, repository, private, exist_ok):
            huggingface_hub.utils.validate_repo_id(repository)
            Api.calls.append((repository, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, commit_message):
            if Api.fails:
                raise Api.fails
            Api.calls.append((repo_id, sorted(path.name for path in folder_path.iterdir())))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return Api


def test_an_export_carries_a_card_of_its_run_and_is_uploaded(finished_run, tmp_path, hub, capsys):
    directory = tmp_path / "model"
    assert main(["export", str(finished_run), str(directory), "--push", "me/mine"]) == 0
    assert "uploaded: https://hub/me/mine" in capsys.readouterr().out
    assert hub.calls[0] == ("me/mine", True, True) and {"README.md", "config.json"} <= {*hub.calls[1][1]}
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


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--push", "me/mine", "--token"], "unrecognized arguments: --token"),
        (["--public"], "--public says how --push uploads; add --push OWNER/NAME"),
    ],
)
def test_mistakes_are_named_before_an_export(finished_run, tmp_path, hub, capsys, arguments, message):
    assert main(["export", str(finished_run), str(tmp_path / "model"), *arguments]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "repository, state, message",
    [
        ("me/mine", {"token": ""}, "not logged in to the hub; run `hf auth login`, or set HF_TOKEN; .* is complete"),
        ("a b c/d", {}, "expected OWNER/NAME; .* is complete"),
        ("me/mine", {"fails": RuntimeError("413 too large\nmore")}, r"did not take it \(413 too large\); .* complete"),
        ("me/mine", {"fails": OSError()}, r"did not take it \(OSError\)"),
    ],
)
def test_a_failed_upload_says_why_and_that_the_export_is_complete(
    tmp_path, hub, monkeypatch, repository, state, message
):
    for name, value in state.items():
        monkeypatch.setattr(hub, name, value)
    with pytest.raises(ConfigError, match=message):
        push(tmp_path, repository, public=False)
