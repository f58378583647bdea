"""Published sizes, and which Hugging Face configurations are taken, refused, and written."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import pytest

from fr3e_jax.policy.architecture import (
    PUBLISHED,
    Architecture,
    UnsupportedModel,
    from_hf_config,
    read_architecture,
    to_hf_config,
)
from fr3e_jax.policy.network import build_network, initial_params

# config.json of Qwen/Qwen2.5-0.5B-Instruct.
QWEN_HALF_BILLION = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# Billions of parameters, from the number of elements in the released checkpoints.
BILLIONS = {"0.5b": 0.494, "1.5b": 1.544, "3b": 3.086, "7b": 7.616, "14b": 14.770, "32b": 32.764, "72b": 72.706}


def elements(tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("size", BILLIONS)
def test_published_sizes_have_their_known_number_of_parameters(size):
    """Two layers are built, without a weight being allocated; all layers are alike."""
    architecture = PUBLISHED[f"qwen2.5-{size}"]
    count = [elements(build_network(dataclasses.replace(architecture, num_layers=n))[1]) for n in (1, 2)]
    whole = count[0] + (count[1] - count[0]) * (architecture.num_layers - 1)
    assert whole == architecture.num_parameters
    assert f"{whole / 1e9:.3f}" == f"{BILLIONS[size]:.3f}"


@pytest.mark.parametrize("tied", [True, False])
def test_initial_parameters_are_as_many_as_the_architecture_says(key, tied):
    architecture = Architecture(11, 12, 2, 4, 2, 6, 20, tie_word_embeddings=tied)  # heads wider than the network
    assert elements(initial_params(architecture, key)) == architecture.num_parameters


def test_reads_a_released_config():
    assert from_hf_config(QWEN_HALF_BILLION) == PUBLISHED["qwen2.5-0.5b"]


def test_reads_rope_theta_where_newer_transformers_put_it():
    config = QWEN_HALF_BILLION | {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    del config["rope_theta"]
    assert from_hf_config(config).rope_theta == 5000.0


def test_a_missing_rope_theta_is_the_default_of_transformers():
    config = {name: value for name, value in QWEN_HALF_BILLION.items() if name != "rope_theta"}
    assert from_hf_config(config).rope_theta == 10000.0


def test_everything_unsupported_is_named_in_one_message():
    wrong = QWEN_HALF_BILLION | {
        "model_type": "llama",
        "rope_scaling": {"type": "yarn", "factor": 4.0},
        "use_sliding_window": True,
        "hidden_act": "gelu",
        "quantization_config": {"bits": 4},
    }
    del wrong["intermediate_size"], wrong["vocab_size"]
    with pytest.raises(UnsupportedModel) as error:
        from_hf_config(wrong)
    named = ("'llama'", "yarn", "use_sliding_window", "gelu", "quantised", "vocab_size, intermediate_size")
    assert [name for name in named if name not in str(error.value)] == []


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"model_type": "qwen3"}, "model_type is 'qwen3'; supported: 'qwen2'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, "rope scaling {'rope_type': 'linear', 'factor': 2}"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling {'rope_type': 'yarn'"),
        ({"use_sliding_window": True}, "use_sliding_window=true is not supported"),
    ],
)
def test_each_unsupported_setting_is_refused_alone(setting, named):
    with pytest.raises(UnsupportedModel) as error:
        from_hf_config(QWEN_HALF_BILLION | setting)
    assert named in str(error.value) and ";" not in str(error.value).replace("; supported", "")


def test_settings_that_change_nothing_are_accepted():
    silent = {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert from_hf_config(QWEN_HALF_BILLION | silent) == PUBLISHED["qwen2.5-0.5b"]


def test_written_config_reads_back_the_same():
    architecture = Architecture(11, 12, 3, 4, 2, 6, 20, 5e4, 1e-5, False, 99)
    written = json.loads(json.dumps(to_hf_config(architecture, dtype="float32", eos_token_id=3, pad_token_id=None)))
    assert from_hf_config(written) == architecture


def test_a_directory_without_config_or_with_a_broken_one_is_named(tmp_path):
    with pytest.raises(UnsupportedModel, match=r"config\.json not found: model\.path must name"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"')
    with pytest.raises(UnsupportedModel, match=str(tmp_path)):
        read_architecture(tmp_path)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(UnsupportedModel, match="num_heads=5 is not a multiple of num_kv_heads=2"):
        Architecture(11, 12, 1, 5, 2, 6, 20)
    with pytest.raises(UnsupportedModel, match="head_dim=3 is odd"):
        Architecture(11, 12, 1, 4, 2, 3, 20)
