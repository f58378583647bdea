"""Published sizes, checked by shape without allocating a weight, and architectures that are refused."""

from __future__ import annotations

import dataclasses
import math

import jax
import pytest

from fr3e_jax.policy.architecture import PUBLISHED, Architecture, UnsupportedModel
from fr3e_jax.policy.huggingface import stored_shapes
from fr3e_jax.policy.network import build_network, initial_params

# Numbers of parameters of the released checkpoints, a repeated head not counted: exact where an exact one is published
# (Keras' presets give Qwen3's smallest), else in billions as the model cards round them.
PUBLISHED_PARAMETERS = {
    "qwen2.5-0.5b": "0.494",
    "qwen2.5-1.5b": "1.544",
    "qwen2.5-3b": "3.086",
    "qwen2.5-7b": "7.616",
    "qwen2.5-14b": "14.770",
    "qwen2.5-32b": "32.764",
    "qwen2.5-72b": "72.706",
    "qwen2.5-math-1.5b": "1.544",
    "qwen2.5-math-7b": "7.616",
    "qwen2.5-math-72b": "72.706",
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": "1.721",
    "qwen3-4b": "4.022",
    "qwen3-8b": "8.191",
    "qwen3-14b": "14.768",
    "qwen3-32b": "32.762",
}


def elements(tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def expected_tensors(a: Architecture, layers: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that PyTorch's Qwen2ForCausalLM and Qwen3ForCausalLM store, written out."""
    d, q, kv, mlp = a.hidden_size, a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim, a.intermediate_size
    table = {"model.embed_tokens.weight": (a.vocab_size, d), "model.norm.weight": (d,)}
    block = {
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
        "self_attn.q_proj.weight": (q, d),
        "self_attn.k_proj.weight": (kv, d),
        "self_attn.v_proj.weight": (kv, d),
        "self_attn.o_proj.weight": (d, q),
        "mlp.gate_proj.weight": (mlp, d),
        "mlp.up_proj.weight": (mlp, d),
        "mlp.down_proj.weight": (d, mlp),
    }
    if a.model_type == "qwen2":
        block |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    else:
        block |= {"self_attn.q_norm.weight": (a.head_dim,), "self_attn.k_norm.weight": (a.head_dim,)}
    for layer in range(layers):
        table |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return table if a.tie_word_embeddings else table | {"lm_head.weight": (a.vocab_size, d)}


def test_every_published_size_has_an_expected_count():
    assert PUBLISHED.keys() == PUBLISHED_PARAMETERS.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size_has_its_known_number_of_parameters(name):
    """Two layers are built without allocating a weight; all layers are alike."""
    architecture, known = PUBLISHED[name], PUBLISHED_PARAMETERS[name]
    count = [elements(build_network(dataclasses.replace(architecture, num_layers=n))[1]) for n in (1, 2)]
    whole = count[0] + (count[1] - count[0]) * (architecture.num_layers - 1)
    assert whole == architecture.num_parameters
    assert known == (whole if isinstance(known, int) else f"{whole / 1e9:.3f}")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size_has_the_tensors_of_the_released_files(name):
    architecture = dataclasses.replace(PUBLISHED[name], num_layers=2)
    assert stored_shapes(architecture, build_network(architecture)[1]) == expected_tensors(architecture, layers=2)


def test_building_a_released_size_allocates_no_weight():
    architecture = PUBLISHED["qwen3-0.6b"]
    shapes = stored_shapes(architecture, build_network(architecture)[1])
    assert shapes == expected_tensors(architecture, layers=28)
    assert sum(map(math.prod, shapes.values())) == 596_049_920


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", [{}, {"model_type": "qwen3"}, {"model_type": "qwen3", "attention_bias": True}])
def test_number_of_initial_parameters_equals_num_parameters(key, tied, family):
    architecture = Architecture(11, 12, 2, 4, 2, 6, 20, tie_word_embeddings=tied, **family)  # heads wider than the net
    assert elements(initial_params(architecture, key)) == architecture.num_parameters


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "num_heads=5 is not a multiple of num_kv_heads=2"),
        ({"head_dim": 3}, "head_dim=3 is odd or below 2"),
        ({"model_type": "llama"}, "model_type='llama' is not supported; expected 'qwen2' or 'qwen3'"),
        ({"attention_bias": True}, "attention_bias=true is Qwen3's"),
    ],
)
def test_unsupported_architecture_is_refused_with_the_reason(changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        dataclasses.replace(Architecture(11, 12, 1, 4, 2, 6, 20), **changes)
