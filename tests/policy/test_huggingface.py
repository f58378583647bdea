"""Hugging Face directories: bit-exact there and back, and one message that names all that does not fit."""

from __future__ import annotations

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fr3e_jax.policy.architecture import UnsupportedModel, read_architecture
from fr3e_jax.policy.huggingface import load_params, save_params
from fr3e_jax.policy.network import build_network

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def save(directory, network, params=None, dtype="float32"):
    params = network.params if params is None else params
    save_params(directory, network.architecture, params, eos_token_id=3, pad_token_id=1, dtype=dtype)


def load(directory, network):
    return load_params(directory, network.architecture, network.abstract)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fixture", ["tiny", "tiny_untied"])
def test_saved_parameters_load_bit_for_bit(fixture, dtype, request, tmp_path):
    network = request.getfixturevalue(fixture)
    params = jax.tree.map(lambda x: np.asarray(x).astype(DTYPES[dtype]), network.params)
    save(tmp_path, network, params, dtype)
    architecture = read_architecture(tmp_path)
    assert architecture == network.architecture
    loaded = load_params(tmp_path, architecture, build_network(architecture, param_dtype=dtype)[1])
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(loaded), strict=True):
        assert theirs.dtype == DTYPES[dtype]
        np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))


def test_stored_and_asked_types_may_differ(tiny, tmp_path):
    save(tmp_path, tiny, dtype="bfloat16")
    for ours, theirs in zip(jax.tree.leaves(tiny.params), jax.tree.leaves(load(tmp_path, tiny)), strict=True):
        assert theirs.dtype == np.float32
        np.testing.assert_array_equal(np.asarray(ours).astype(ml_dtypes.bfloat16).astype(np.float32), theirs)


def test_config_and_generation_config_carry_the_token_ids(tiny, tmp_path):
    save(tmp_path, tiny)
    for name in ("config.json", "generation_config.json"):
        written = json.loads((tmp_path / name).read_text())
        assert (written["eos_token_id"], written["pad_token_id"]) == (3, 1)


def test_weights_may_lie_in_several_files(tiny, tmp_path):
    save(tmp_path, tiny)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    for part in range(2):
        names = sorted(tensors)[part::2]
        save_file({name: tensors[name] for name in names}, tmp_path / f"model-{part + 1:05}-of-00002.safetensors")
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path, tiny), tiny.params)


def test_one_message_names_all_missing_unexpected_and_misshaped_tensors(tiny, tmp_path):
    save(tmp_path, tiny)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"], tensors["model.layers.1.self_attn.k_proj.bias"]
    tensors["model.layers.2.mlp.up_proj.weight"] = np.zeros((48, 32), np.float32)
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((48, 31), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel) as error:
        load(tmp_path, tiny)
    for named in (
        str(tmp_path),
        "missing model.norm.weight",
        "missing model.layers.1.self_attn.k_proj.bias",
        "unexpected model.layers.2.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight has shape (48, 31), the configuration asks for (48, 32)",
    ):
        assert named in str(error.value)
    assert str(error.value).count(";") == 3  # and no other


def test_a_tied_checkpoint_may_repeat_its_embedding_as_head(tiny, tmp_path):
    save(tmp_path, tiny)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}, tmp_path / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path, tiny), tiny.params)


def test_an_untied_checkpoint_needs_its_head(tiny, tiny_untied, tmp_path):
    save(tmp_path, tiny)
    with pytest.raises(UnsupportedModel, match="missing lm_head.weight"):
        load(tmp_path, tiny_untied)


def test_a_directory_without_safetensors_says_so(tiny, tmp_path):
    with pytest.raises(UnsupportedModel, match=r"no \*\.safetensors file in .*other formats are not read"):
        load(tmp_path, tiny)
