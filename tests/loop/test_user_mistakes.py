"""Mistakes that only show when the settings are put to use: one clear line, exit code 2, and no run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.verbs.model_directory import save_model


@pytest.fixture
def recipe(tmp_path, tiny_run) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(tiny_run.config(runtime__output_dir=str(tmp_path / "runs"), model__hidden_size=8)))
    return str(path)


@pytest.fixture
def mistake(recipe, capsys):
    """Run a verb that must fail; return the line that it prints."""

    def run(verb: str, *arguments: str) -> str:
        assert main([verb, recipe, *arguments]) == 2
        printed = capsys.readouterr()
        lines = printed.err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("fr3e: error: "), printed.err
        return lines[0]

    return run


@pytest.fixture
def model(tmp_path, session) -> Path:
    """A working Hugging Face directory, in which each test breaks one thing."""
    directory = tmp_path / "model"
    save_model(session, session.model.fresh_params(session.config), directory)
    return directory


def test_a_model_directory_without_tokenizer(mistake, model):
    for path in model.glob("tokenizer*"):
        path.unlink()
    assert "has no tokenizer.json" in mistake("train", f"model.path={model}")


def test_weights_that_do_not_fit(mistake, model):
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 64}))
    line = mistake("train", f"model.path={model}")
    assert "does not fit its config.json" in line and "gate_proj" in line


def test_text_that_the_tokenizer_cannot_spell(mistake, tiny_run):
    expected = "character 'é' at position 0 of 'é"
    assert expected in mistake("train", f"data.task={tiny_run.task}:UnspellablePrompts")
    assert expected in mistake("sft", f"data.task={tiny_run.task}:UnspellableDemonstrations", "evaluation.prompts=1")


def test_a_tokenizer_that_cannot_be_read(mistake, model):
    for content in ("{broken", '{"version": "1.0", "model": {"type": "none"}}'):
        (model / "tokenizer.json").write_text(content)
        assert f"the tokenizer in {model} cannot be read (" in mistake("train", f"model.path={model}")


def test_fine_tuning_on_a_card_without_solutions(mistake, tmp_path):
    (tmp_path / "sums.jsonl").write_text('{"q": "1+1=", "a": "2"}\n')
    card = (
        "name: sums\nverifier: exact\nfields: {question: q, answer: a}\nsplits: {train: sums.jsonl, test: sums.jsonl}\n"
    )
    (tmp_path / "sums.yaml").write_text(card)
    cards = [f"data.train=[{tmp_path}/sums.yaml]", f"data.eval=[{tmp_path}/sums.yaml]"]
    line = mistake("sft", "data.task=datasets", f"data.root={tmp_path}", *cards)
    assert "there are no demonstrations in sums/train" in line
    assert not (tmp_path / "runs").exists()


def test_bugs_in_a_task_keep_their_traceback(recipe, tmp_path):
    """A bug is not a mistake in the settings: one line would hide its place."""
    (tmp_path / "broken.py").write_text("class Task:\n    def __init__(self, config):\n        self.name = undefined\n")
    with pytest.raises(NameError, match="undefined"):
        main(["train", recipe, f"data.task={tmp_path}/broken.py:Task"])
