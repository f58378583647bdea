"""`config.json`: accepted ones, ones that are refused by name, and written ones."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from fr3e_jax.policy.architecture import PUBLISHED, Architecture, UnsupportedModel
from fr3e_jax.policy.config_file import from_hf_config, read_architecture, retyped, to_hf_config
from fr3e_jax.policy.rotary import RopeScaling

# config.json of Qwen/Qwen2.5-0.5B-Instruct.
QWEN2 = {
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
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# config.json of Qwen/Qwen3-4B.
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


def test_qwen2_5_math_config_keeps_its_rotary_base():
    config = QWEN2 | {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12}
    config |= {"intermediate_size": 8960, "rope_theta": 10000, "max_position_embeddings": 4096}
    assert from_hf_config(config) == PUBLISHED["qwen2.5-math-1.5b"]


def test_config_of_newer_transformers_reads_as_the_same_architecture():
    """Transformers 5 moves rope_theta, and lists the kind of every layer."""
    moved = without(QWEN3, "rope_theta", "rope_scaling") | {"layer_types": ["full_attention"] * 36, "dtype": "bfloat16"}
    config = moved | {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    assert from_hf_config(config) == dataclasses.replace(PUBLISHED["qwen3-4b"], rope_theta=5000.0)


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        (QWEN2 | {"rms_norm_eps": None}, "rms_norm_eps", 1e-6),
        (QWEN2 | {"num_key_value_heads": None}, "num_kv_heads", 14),
        (QWEN3 | {"attention_bias": True}, "attention_bias", True),
        (QWEN2 | {"attention_bias": True}, "attention_bias", False),  # Qwen2's biases are fixed, the key is not read
        (QWEN2 | {"rope_scaling": None, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta", 1e6),
        (QWEN2 | {"rope_scaling": {"type": "default"}}, "rope_theta", 1e6),
    ],
)
def test_unusual_setting_is_read_as_transformers_does(config, name, value):
    assert getattr(from_hf_config(config), name) == value


@pytest.mark.parametrize(
    "name", ["qwen2.5-72b", "qwen3-4b", "qwen3-30b-a3b", "llama-3.2-1b", "gemma-2-9b", "gemma-3-1b"]
)
def test_absent_setting_has_the_default_of_transformers(name):
    """Any key may be absent: transformers' class for the model type says what it is then."""
    from transformers import CONFIG_MAPPING

    config = to_hf_config(PUBLISHED[name], dtype="float32", eos_token_id=1, pad_token_id=0)
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    assert config.keys() > {"head_dim", "num_key_value_heads", "rope_theta", "rms_norm_eps", "max_position_embeddings"}
    for absent in config.keys() - {"model_type", *sizes}:  # a config.json without its sizes is refused
        rest = without(config, absent)
        # A copy: transformers writes into the objects that it is given.
        theirs = CONFIG_MAPPING[rest["model_type"]](**without(copy.deepcopy(rest), "model_type"))
        ours = from_hf_config(rest)
        heads, rope = theirs.num_attention_heads, theirs.rope_parameters
        expected = {
            "num_kv_heads": theirs.num_key_value_heads,
            "head_dim": getattr(theirs, "head_dim", None) or theirs.hidden_size // heads,
            "rms_norm_eps": theirs.rms_norm_eps,
            "rope_theta": rope.get("full_attention", rope)["rope_theta"],
            "tie_word_embeddings": theirs.tie_word_embeddings,
            "max_position_embeddings": theirs.max_position_embeddings,
        }
        assert {field: getattr(ours, field) for field in expected} == expected, absent


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("top", [1024, None])
@pytest.mark.parametrize("beside", [4096, None])
def test_context_of_pretraining_is_read_from_where_transformers_reads_it(kind, place, top, beside):
    """At the top of config.json it overrides the key beside the kind; without both it is the longest context."""
    from transformers import CONFIG_MAPPING

    factors = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}, "yarn": {}}[kind]
    scaling = {"rope_type": kind, "factor": 8.0} | factors
    scaling |= {"original_max_position_embeddings": beside} if beside else {}
    config = without(LLAMA, "rope_scaling") | {place: scaling}
    config |= {"original_max_position_embeddings": top} if top else {}
    ours = from_hf_config(json.loads(json.dumps(config)))
    theirs = CONFIG_MAPPING["llama"](**without(json.loads(json.dumps(config)), "model_type"))
    theirs.standardize_rope_params()  # as the network does when it is built
    expected = theirs.rope_parameters["original_max_position_embeddings"]
    assert ours.rope_scaling.original_max_position_embeddings == expected == (top or beside or 131072)


REFUSED = [
    ({"model_type": "mistral"}, "'llama' (Llama 3, 3.1, 3.2 (text), 3.3)"),
    ({"model_type": "gemma3"}, "save its text part first, in six lines of docs/users/models.md"),
    ({"model_type": "llama4"}, "Llama 4 is a mixture of experts with attention in chunks"),
    (
        {"model_type": "llama", "sliding_window": None, "mlp_bias": True},
        "mlp_bias=true is not supported (only false in this family)",
    ),
    ({"model_type": "llama", "sliding_window": 32}, "sliding_window=32 is not supported (only null in this family)"),
    ({"model_type": "qwen3", "is_causal": False}, "is_causal=false is not supported (attention to later tokens)"),
    ({"is_causal": 0}, "is_causal=0 is not supported (attention to later tokens)"),
    ({"is_encoder_decoder": True}, "is_encoder_decoder=true is not supported (an encoder)"),
    ({"model_type": "gemma2", "hidden_activation": "gelu"}, 'hidden_activation="gelu" is not supported (only gelu_'),
    ({"model_type": "gemma2", "use_bidirectional_attention": True}, "(attention to later tokens)"),
    (
        {"model_type": "gemma2", "layer_types": ["full_attention"]},
        "layer_types has 1 entries and num_hidden_layers is 24",
    ),
    ({"model_type": "gemma2", "sliding_window": 0}, "sliding_window=0 is not a whole number"),
    ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0 is not supported (not in this family)"),
    (
        {"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"rope_type": "yarn", "factor": 2.0}}},
        "rope_parameters of sliding_attention=",
    ),
    ({"model_type": "qwen2_moe"}, "take Qwen3-30B-A3B"),
    ({"model_type": "mixtral"}, "'qwen3_moe' (Qwen3 with experts)"),
    ({"model_type": "qwen3_moe", "num_experts": 4}, "num_experts_per_tok=8 is more than num_experts=4"),
    ({"model_type": "qwen3_moe", "num_experts": 0}, "num_experts=0 is not a whole number from 1"),
    ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "mlp_only_layers=3 is not a list of layers"),
    ({"model_type": "qwen3_moe", "norm_topk_prob": 1}, "norm_topk_prob=1 is neither true nor false"),
    (
        {"model_type": "qwen3_moe", "num_experts": 64, "num_local_experts": 32},
        "num_experts=64 and num_local_experts=32 contradict one another",
    ),
    ({"model_type": None}, "model_type=null is not supported"),
    ({"num_experts": 128}, "num_experts=128 is not supported (mixture of experts)"),
    ({"rope_scaling": {"rope_type": "linear"}}, "lacks a number above 0 in factor"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "lacks a number above 0 in factor"),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "lacks a number above 0 in low_freq_factor, high_freq_f",
    ),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0}}, "type yarn with mscale is not supported"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False}}, "(rope scaling)"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "(rope scaling, only linear, llama3, yarn)"),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"type": "linear", "factor": 4.0}},
        "rope_scaling and rope_parameters differ",
    ),
    ({"rope_scaling": {"rope_type": "default", "type": "yarn", "factor": 4.0}}, "(rope scaling)"),
    ({"rope_scaling": {"factor": 4.0}}, "(rope scaling)"),
    ({"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}}, 'rope_parameters={"rope_type": "longrope"'),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "(rope scaling)"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "(rope scaling)"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "rope_theta is given twice"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
    (
        {"use_sliding_window": True},
        "use_sliding_window=true is not supported (only false in this family)",
    ),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types with sliding_attention are not supported"),
    ({"hidden_act": "gelu"}, 'hidden_act="gelu" is not supported (only silu)'),
    ({"quantization_config": {"bits": 4}}, 'quantization_config={"bits": 4} is not supported (quantised weights)'),
    ({"dual_chunk_attention_config": {"chunk_size": 4}}, "(dual chunk attention)"),
    ({"auto_map": {"AutoModelForCausalLM": "own.Own"}}, "(a network in code of its own, which is never run)"),
    ({"hidden_size": "896"}, 'hidden_size="896" is not a whole number'),
    ({"rope_scaling": "yarn"}, 'rope_scaling="yarn" is not a JSON object'),
    ({"rope_theta": "1e6"}, 'rope_theta="1e6" is not a number above 0'),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0 is not a number above 0"),
    ({"num_key_value_heads": 0}, "num_key_value_heads=0 is not a whole number"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is not a whole number from 1 to 1000"),
    ({"hidden_size": 1e12}, "hidden_size=1000000000000.0 is not a whole number from 1 to 1000000"),
    ({"vocab_size": -3}, "vocab_size=-3 is not a whole number"),
    ({"intermediate_size": [4]}, "intermediate_size=[4] is not a whole number"),
    ({"layer_types": 4}, "layer_types=4 is not a list"),
    ({"layer_types": [{"a": 1}]}, 'layer_types with {"a": 1} are not supported'),
    ({"rope_scaling": {"type": ["yarn"]}}, 'rope_scaling={"type": ["yarn"]} is not supported'),
    ({"rope_theta": 10**400}, "rope_theta=1000000"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, 'rope_theta="x" is not a number above 0'),
    ({"tie_word_embeddings": "false"}, 'tie_word_embeddings="false" is neither true nor false'),
    ({"hidden_size": 897}, "hidden_size=897 is not a multiple of num_attention_heads=14, and head_dim is absent"),
    ({"hidden_act": "x" * 500}, "xxx... is not supported (only silu)"),
]


@pytest.mark.parametrize(("setting", "named"), REFUSED)
def test_each_unsupported_setting_is_refused_by_name(setting, named):
    with pytest.raises(UnsupportedModel) as error:
        from_hf_config(QWEN2 | setting)
    assert named in str(error.value) and ";" not in str(error.value)


def test_all_unsupported_settings_are_named_in_one_message():
    wrong = without(QWEN2, "intermediate_size", "vocab_size") | {
        "model_type": "deepseek_v3",
        "num_experts": 8,
        "rope_scaling": {"type": "dynamic", "factor": 4.0},
        "use_sliding_window": True,
        "hidden_act": "gelu",
        "quantization_config": {"bits": 4},
    }
    with pytest.raises(UnsupportedModel) as error:
        from_hf_config(wrong)
    named = ("deepseek_v3", "num_experts=8", "dynamic", "use_sliding_window", "gelu", "quantised", "intermediate_size")
    assert [name for name in named if name not in str(error.value)] == []
    assert "lacks vocab_size, intermediate_size" in str(error.value)


# config.json of Llama-3.2-1B, gemma-2-9b-it and gemma-3-1b-it, without what the network does not depend on.
LLAMA = {
    "model_type": "llama",
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
GEMMA2 = {
    "model_type": "gemma2",
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "vocab_size": 256000,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}


RELEASED = {"qwen2.5-0.5b": QWEN2, "qwen3-4b": QWEN3}
RELEASED |= {"llama-3.2-1b": LLAMA, "gemma-2-9b": GEMMA2, "gemma-3-1b": GEMMA3}


@pytest.mark.parametrize(("name", "config"), RELEASED.items(), ids=RELEASED)
def test_released_config_reads_as_its_published_architecture(name, config):
    assert from_hf_config(config) == PUBLISHED[name]


def test_config_of_newer_transformers_names_the_rope_of_each_kind_of_layer():
    moved = without(GEMMA3, "rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern")
    kinds = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}
    kinds["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    found = from_hf_config(moved | {"rope_parameters": kinds, "layer_types": ["sliding_attention"] * 26})
    assert (found.windows, found.local_rope_theta, found.rope(512)) == ((512,), 1e4, (1e4, None))
    assert found.rope(0) == (1e6, RopeScaling("linear", 8.0))


def test_yarn_lengthens_the_context():
    """As Qwen's model cards write it; max_position_embeddings stays that of pretraining there."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    found = from_hf_config(QWEN2 | {"rope_scaling": scaling})
    assert (found.max_position_embeddings, found.rope_scaling.kind) == (131072, "yarn")
    assert from_hf_config(QWEN2 | {"rope_scaling": without(scaling, "original_max_position_embeddings")}) == found


FAMILIES = [
    {},
    {"model_type": "qwen3", "attention_bias": True},
    {"model_type": "llama", "rope_scaling": RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)},
    {"rope_scaling": RopeScaling("yarn", 4.0, 99, attention_factor=1.5)},
    {"model_type": "gemma2", "windows": (7, 0), "query_scalar": 5.0, "attention_softcap": 9.0, "final_softcap": 2.5},
    {"model_type": "gemma3_text", "windows": (7, 7, 0), "local_rope_theta": 3.0, "attention_bias": True},
]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_written_config_reads_back_as_the_same_architecture(family):
    positions = 396 if "yarn" in str(family) else 99
    architecture = Architecture(11, 12, 3, 4, 2, 6, 20, 5e4, 1e-5, False, positions, **family)
    written = json.loads(json.dumps(to_hf_config(architecture, dtype="float32", eos_token_id=3, pad_token_id=None)))
    assert from_hf_config(written) == architecture


def test_retyped_config_changes_only_the_type_of_the_weights():
    moved = without(QWEN3, "rope_theta") | {"dtype": "bfloat16", "mine": 1, "rope_parameters": {"rope_theta": 1e6}}
    changed = retyped(moved, from_hf_config(moved), "float16")
    assert changed == moved | {"dtype": "float16", "torch_dtype": "float16", "rope_theta": 1e6}
    assert from_hf_config(changed) == from_hf_config(moved)
    longer = dataclasses.replace(from_hf_config(moved), max_position_embeddings=99_999)  # a setting of the run
    assert from_hf_config(retyped(moved, longer, "float16")) == longer


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"config\.json not found: model\.path must name"),
        ('{"model_type": "qwen2"', r"config\.json is not JSON"),
        ("[1]", r"config\.json holds a list; expected a JSON object"),
        ('{"model_type": "qwen2"}', r"config\.json: it lacks vocab_size, hidden_size"),
        ("[" * 100_000, r"config\.json.*nested too deeply"),
    ],
)
def test_missing_or_broken_config_is_refused_with_its_path(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UnsupportedModel, match=message) as error:
        read_architecture(tmp_path)
    assert str(tmp_path) in str(error.value)
