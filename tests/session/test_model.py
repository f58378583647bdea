"""The configured network, and the models that are refused."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.configuration.model_names import ModelName
from fr3e_jax.policy.architecture import PUBLISHED, UnsupportedModel
from fr3e_jax.policy.config_file import to_hf_config
from fr3e_jax.session.model import configured_architecture

RECIPE = "configs/fr3e_gsm8k.yaml"


def configured(*settings, vocab_size=0):
    return configured_architecture(load_config(RECIPE, list(settings), training=False), vocab_size)


@pytest.fixture
def directory(tmp_path):
    config = to_hf_config(PUBLISHED["qwen2.5-7b"], dtype="bfloat16", eos_token_id=1, pad_token_id=1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_every_published_network_can_be_named():
    assert set(get_args(ModelName)) == {"custom", *PUBLISHED}
    for name in PUBLISHED:
        assert configured(f"model.architecture={name}") == PUBLISHED[name]


def test_a_named_network_needs_no_sizes_that_fit_together(tmp_path):
    (tmp_path / "sized.yaml").write_text("model: {architecture: qwen2.5-0.5b, num_heads: 7}\n")
    assert configured_architecture(load_config(tmp_path / "sized.yaml", training=False), 0).num_heads == 14


def test_a_directory_of_the_named_network_is_taken(directory):
    path = f"model.path={directory}"
    assert configured(path, "model.architecture=qwen2.5-7b") == PUBLISHED["qwen2.5-7b"] == configured(path)


def test_a_directory_of_another_network_is_refused_with_the_differences(directory):
    with pytest.raises(UnsupportedModel) as told:
        configured(f"model.path={directory}", "model.architecture=qwen2.5-32b")
    assert "num_layers=28 where qwen2.5-32b has 64" in str(told.value)
    assert "set model.architecture=qwen2.5-7b, or name another directory" in str(told.value)


def test_a_context_shorter_than_the_longest_sequence_is_refused_unless_it_is_widened():
    longest = ["model.architecture=qwen2.5-math-7b", "data.max_prompt_tokens=1024", "rollout.max_response_tokens=3073"]
    with pytest.raises(UnsupportedModel, match="qwen2.5-math-7b has 4096 positions .* needs 4097 .*=4097$"):
        configured(*longest)
    assert configured(*longest, "model.max_position_embeddings=5000").max_position_embeddings == 5000
