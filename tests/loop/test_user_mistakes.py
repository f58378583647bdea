"""Mistakes that only show when the settings are put to use: one clear line, exit code 2, and no run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.data.character_tokenizer import character_tokenizer
from fr3e_jax.verbs.model_directory import save_model


@pytest.fixture
def recipe(tmp_path, tiny_run) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(tiny_run.config(runtime__output_dir=str(tmp_path / "runs"), model__hidden_size=8)))
    return str(path)


@pytest.fixture
def mistake(recipe, tmp_path, capsys):
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


def edit_config(model: Path, **changes) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_model_path_that_does_not_exist(mistake, tmp_path, verb):
    line = mistake(verb, f"model.path={tmp_path}/nowhere")
    assert f"model.path={tmp_path}/nowhere is no directory; expected a Hugging Face directory" in line
    assert not (tmp_path / "runs").exists()


def test_a_model_directory_without_tokenizer_or_config(mistake, model):
    config = (model / "config.json").read_text()
    (model / "config.json").unlink()
    assert "config.json not found: model.path must name" in mistake("train", f"model.path={model}")
    (model / "config.json").write_text(config)
    for path in model.glob("tokenizer*"):
        path.unlink()
    assert "has no tokenizer.json" in mistake("train", f"model.path={model}")


def test_a_model_of_another_family(mistake, model):
    # The tokenizer is the embedded one, so that only the network is looked at.
    edit_config(model, model_type="mistral")
    line = mistake("train", f"model.path={model}")
    assert 'model_type="mistral" is not supported' in line and "'qwen3' (dense Qwen3)" in line


def test_weights_that_do_not_fit_or_cannot_be_read(mistake, model):
    edit_config(model, intermediate_size=64)
    line = mistake("train", f"model.path={model}")
    assert "does not fit its config.json" in line and "gate_proj" in line
    edit_config(model, intermediate_size=32)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert str(weights) in mistake("train", f"model.path={model}")
    weights.unlink()
    assert "no model.safetensors, model.safetensors.index.json" in mistake("train", f"model.path={model}")


def test_a_tokenizer_with_more_tokens_than_the_model(mistake, model, tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["more", "tokens"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    line = mistake("train", f"model.path={model}", f"model.tokenizer={tmp_path}/tokenizer")
    assert "the tokenizer has 26 tokens, the model's embedding 24" in line
    assert "set model.tokenizer to the model's own tokenizer" in line
    assert "nowhere is no directory; expected a Hugging Face" in mistake("train", f"model.tokenizer={tmp_path}/nowhere")


def test_a_task_that_does_not_exist(mistake, tmp_path):
    assert "did you mean 'order'?" in mistake("train", "data.task=ordre")
    assert "does not exist" in mistake("train", f"data.task={tmp_path}/task.py:Task")
    assert "there is no module no_such_module" in mistake("train", "data.task=no_such_module:Task")


@pytest.mark.parametrize("verb", ["train", "sft", "eval"])
def test_prompts_that_are_all_too_long(mistake, verb):
    line = mistake(verb, "data.max_prompt_tokens=1")
    assert "no held-out problem of at most data.max_prompt_tokens=1 tokens" in line


def test_text_that_the_tokenizer_cannot_spell(mistake, tiny_run):
    expected = "character 'é' at position 0 of 'é"
    assert expected in mistake("train", f"data.task={tiny_run.task}:UnspellablePrompts")
    assert expected in mistake("sft", f"data.task={tiny_run.task}:UnspellableDemonstrations", "evaluation.prompts=1")
    assert "character 'é' at position 1 of '1é'" in mistake("sample", "--prompt", "1é")


def test_a_chat_template_that_the_tokenizer_lacks(mistake, tmp_path):
    line = mistake("train", "data.template=qwen_chat_boxed")
    assert "has no chat template; set data.template to one that needs none" in line
    assert not (tmp_path / "runs").exists()


def test_a_tokenizer_that_cannot_be_read(mistake, model):
    for content in ("{broken", '{"version": "1.0", "model": {"type": "none"}}'):
        (model / "tokenizer.json").write_text(content)
        assert f"the tokenizer in {model} cannot be read (" in mistake("train", f"model.path={model}")


@pytest.mark.parametrize("returned", ["'yes'", "2.0"])
def test_a_verifier_that_returns_no_reward(mistake, tmp_path, returned):
    (tmp_path / "mine.py").write_text(f"def verify(problem, response, finished):\n    return {returned}\n")
    line = mistake("eval", f"data.verifier={tmp_path}/mine.py:verify", "evaluation.prompts=1")
    assert f"the verifier returned {returned} for problem" in line and "number in [0, 1]" in line


@pytest.mark.parametrize(
    "body, expected",
    [
        ("def verify(problem, response): return 1.0", "takes 2 positional arguments but 3 were given"),
        ("def verify(problem, response, finished): return {}[response]", "KeyError"),
    ],
)
def test_a_verifier_that_raises_is_refused_before_anything_compiles(mistake, tmp_path, body, expected):
    (tmp_path / "mine.py").write_text(body + "\n")
    line = mistake("train", f"data.verifier={tmp_path}/mine.py:verify")
    assert "failed on a first call" in line and expected in line
    assert "expected a function (problem, response, finished)" in line
    assert not (tmp_path / "runs").exists()


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


def test_a_verifier_that_cannot_be_loaded(mistake, tmp_path):
    (tmp_path / "mine.py").write_text("import no_such_module\n")
    line = mistake("train", f"data.verifier={tmp_path}/mine.py:verify")
    assert f"verify: ModuleNotFoundError: No module named 'no_such_module' ({tmp_path}/mine.py, line 1)" in line
    assert not (tmp_path / "runs").exists()


def test_an_empty_prompt(mistake):
    assert "--prompt is empty" in mistake("sample", "--prompt", "")


def test_a_mesh_that_does_not_fit_the_devices(mistake):
    assert "mesh.replica=16 x mesh.fsdp=1 x mesh.tensor=1 is 16 devices" in mistake("train", "mesh.replica=16")


def test_evaluating_a_directory_without_a_run(mistake, tmp_path):
    assert "is not a run directory" in mistake("eval", "--run", str(tmp_path))


def test_bugs_in_a_task_keep_their_traceback(recipe, tmp_path):
    """A bug is not a mistake in the settings: one line would hide its place."""
    (tmp_path / "broken.py").write_text("class Task:\n    def __init__(self, config):\n        self.name = undefined\n")
    with pytest.raises(NameError, match="undefined"):
        main(["train", recipe, f"data.task={tmp_path}/broken.py:Task"])
