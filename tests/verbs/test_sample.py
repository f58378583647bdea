"""`fr3e sample` prints completions with the log-probs and entropies of a full forward pass."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.session.run_weights import load_run_params


@pytest.fixture
def recipe(tmp_path, tiny_run) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(tiny_run.config()))
    return str(path)


def sampled(recipe: str, capsys, *arguments: str) -> str:
    assert main(["sample", recipe, "--prompt", "12+3=", "--num", "4", *arguments]) == 0
    return capsys.readouterr().out


def test_json_has_every_token_with_the_numbers_of_a_full_forward(recipe, capsys, session, tiny_run):
    printed = json.loads(sampled(recipe, capsys, "--json"))
    assert (printed["prompt"], printed["step"], len(printed["completions"])) == ("12+3=", 0, 4)
    assert_of(session.model.fresh_params(session.config), printed, session, tiny_run)
    for completion in printed["completions"]:
        ids = completion["token_ids"]
        assert completion["finished"] == (ids[-1] == session.texts.codec.stop_ids[0])
        visible = completion["tokens"][:-1] if completion["finished"] else completion["tokens"]
        assert completion["text"] == "".join(visible)
    assert len({tuple(completion["token_ids"]) for completion in printed["completions"]}) == 4


def assert_of(params, printed, session, tiny_run):
    """The completions' log-probs and entropies are those of a full forward with ``params``."""
    prompt = session.texts.codec.encode(printed["prompt"])
    for completion in printed["completions"]:
        ids = completion["token_ids"]
        logits = tiny_run.full_logits(session, params, [*prompt, *ids])[len(prompt) - 1 : -1]
        logprobs = tiny_run.log_softmax(logits)
        expected = logprobs[np.arange(len(ids)), ids]
        np.testing.assert_allclose(completion["logprobs"], expected, atol=1e-5)
        np.testing.assert_allclose(completion["entropies"], -(np.exp(logprobs) * logprobs).sum(axis=1), atol=1e-5)


def test_text_shows_the_same_completions_with_their_sums(recipe, capsys):
    text = sampled(recipe, capsys)
    completions = json.loads(sampled(recipe, capsys, "--json"))["completions"]
    shown = re.findall(
        r"\[(\d)\] (.*)\n +(\d+) tokens, (.*), log-prob (\S+), mean entropy (\S+) nats, largest (\S+) at token (\d+)",
        text,
    )
    assert len(shown) == len(completions)
    for n, (row, completion) in enumerate(zip(shown, completions, strict=True)):
        index, quoted, length, ending, logprob, mean, largest, at = row
        assert (int(index), quoted, int(length)) == (n, repr(completion["text"]), len(completion["token_ids"]))
        assert ending == ("stop token" if completion["finished"] else "cut at rollout.max_response_tokens=10")
        entropies = completion["entropies"]
        numbers = (sum(completion["logprobs"]), np.mean(entropies), max(entropies))
        assert (float(logprob), float(mean), float(largest)) == pytest.approx(numbers, abs=2e-3)
        assert int(at) == int(np.argmax(entropies))


def test_the_prompt_may_be_messages_in_json(recipe, capsys, chatting):
    messages = [{"role": "system", "content": "10"}, {"role": "user", "content": "1+2"}]
    printed = {}
    for name, prompt, options in (("text", "%10(1+2)", []), ("messages", json.dumps(messages), chatting)):
        assert main(["sample", recipe, "--prompt", prompt, "--json", *options]) == 0
        printed[name] = json.loads(capsys.readouterr().out)
    assert printed["messages"]["completions"] == printed["text"]["completions"]
    assert main(["sample", recipe, "--prompt", json.dumps([{"role": "usr", "content": "1"}])]) == 2
    assert "--prompt has in message 0 the role 'usr'; nearest: user" in capsys.readouterr().err


def test_the_rollout_settings_apply(recipe, capsys):
    printed = json.loads(sampled(recipe, capsys, "--json", "rollout.temperature=0", "rollout.max_response_tokens=3"))
    assert len({tuple(completion["token_ids"]) for completion in printed["completions"]}) == 1
    assert len(printed["completions"][0]["token_ids"]) <= 3


def test_a_run_answers_with_its_newest_checkpoint(finished_run, tmp_path, capsys, session, tiny_run):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(to_yaml(tiny_run.config(model__hidden_size=32)))  # the run's own model settings win
    printed = json.loads(sampled(str(recipe), capsys, "--json", "--run", str(finished_run)))
    trained, step = load_run_params(session, finished_run)
    assert printed["step"] == step == 4
    assert_of(trained, printed, session, tiny_run)
    assert sampled(str(recipe), capsys, "--run", str(finished_run)).startswith(f"{finished_run}, step 4:\n[0] ")


def test_no_data_are_needed_and_a_run_or_a_model_stands_in_place_of_a_recipe(recipe, finished_run, capsys):
    """Equal tokens, whatever the data section names; a misspelt source is refused."""
    plain = json.loads(sampled(recipe, capsys, "--json"))
    missing = ["data.task=datasets", "data.train=[nowhere.jsonl]", "data.root=/nowhere"]
    assert json.loads(sampled(recipe, capsys, "--json", *missing)) == plain
    of_run = json.loads(sampled(recipe, capsys, "--json", "--run", str(finished_run)))
    assert json.loads(sampled(str(finished_run), capsys, "--json")) == of_run != plain
    model = json.loads(sampled("warm_starts/order", capsys, "--json", "rollout.max_response_tokens=10"))
    assert len(model["completions"]) == 4 and model["step"] == 0
    assert main(["sample", "warm_starts/ordr", "--prompt", "1+2="]) == 2
    assert "warm_starts/ordr" in capsys.readouterr().err
