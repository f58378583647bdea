"""Hugging Face directories: saved and loaded bit for bit, loaded sharded, all misfits named in one message."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.huggingface import load_params, parameter_names, save_params, stored_shapes
from fr3e_jax.policy.network import build_network
from fr3e_jax.policy.tensor_files import TensorFiles
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.shardings import param_shardings

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
FAMILIES = {
    "qwen2": {},
    "qwen2_untied": {"tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3"},
    "qwen3_biased": {"model_type": "qwen3", "attention_bias": True, "tie_word_embeddings": False},
}


def load(directory, network):
    return load_params(directory, network.architecture, network.abstract)


def edit(directory, **changes):
    """Rewrite model.safetensors with tensors replaced, added, or (None) removed; names have __ for dots."""
    tensors = load_file(directory / "model.safetensors")
    tensors |= {name.replace("__", "."): array for name, array in changes.items()}
    save_file({name: t for name, t in tensors.items() if t is not None}, directory / "model.safetensors")


@pytest.mark.parametrize("max_shard_bytes", [10**9, 5000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_saved_parameters_load_bit_for_bit(family, dtype, max_shard_bytes, tiny_network, tmp_path):
    network = tiny_network(**FAMILIES[family])
    params = jax.tree.map(lambda x: np.asarray(x).astype(DTYPES[dtype]), network.params)
    save_params(tmp_path, network.architecture, params, dtype=dtype, max_shard_bytes=max_shard_bytes)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (max_shard_bytes == 5000)
    loaded = load_params(tmp_path, network.architecture, build_network(network.architecture, param_dtype=dtype)[1])
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(loaded), strict=True):
        assert isinstance(theirs, jax.Array) and theirs.dtype == DTYPES[dtype]
        np.testing.assert_array_equal(ours.view(np.uint8), np.asarray(theirs).view(np.uint8))


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
def test_parameters_are_converted_to_the_requested_type(stored, asked, tiny, tmp_path):
    save_params(tmp_path, tiny.architecture, tiny.params, dtype=stored)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert file.get_tensor("model.norm.weight").dtype == DTYPES[stored]
        assert file.metadata() == {"format": "pt"}
    loaded = load_params(tmp_path, tiny.architecture, build_network(tiny.architecture, param_dtype=asked)[1])
    for ours, theirs in zip(jax.tree.leaves(tiny.params), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_array_equal(ours.astype(DTYPES[stored]).astype(DTYPES[asked]), theirs)


def test_device_arrays_are_saved_as_host_arrays_are(tiny, tmp_path):
    for name, params in (("host", tiny.params), ("device", jax.tree.map(jax.device_put, tiny.params))):
        save_params(tmp_path / name, tiny.architecture, params)
    host, device = (tmp_path / name / "model.safetensors" for name in ("host", "device"))
    assert host.read_bytes() == device.read_bytes()


def test_parameters_arrive_sharded_and_each_device_reads_its_own_slice(tiny_untied, tmp_path, monkeypatch):
    """Every tensor is read once: whole on one device, in pieces on eight (make test-8)."""
    network = tiny_untied
    mesh = make_mesh(tensor=2 if jax.device_count() % 2 == 0 else 1)
    shardings = param_shardings(mesh, network.abstract, network.axes, network.architecture)
    save_params(tmp_path, network.architecture, network.params)
    reads, read = {}, TensorFiles.read

    def counted(self, name, index, *arguments, **options):
        piece = read(self, name, index, *arguments, **options)
        reads.setdefault(name, []).append(piece.size)
        return piece

    monkeypatch.setattr(TensorFiles, "read", counted)
    loaded = load_params(tmp_path, network.architecture, network.abstract, shardings)
    for array, sharding in zip(jax.tree.leaves(loaded), jax.tree.leaves(shardings), strict=True):
        assert array.sharding == sharding
    jax.tree.map(np.testing.assert_array_equal, loaded, network.params)
    sizes = {name: int(np.prod(shape)) for name, shape in stored_shapes(network.architecture, network.abstract).items()}
    assert {name: sum(pieces) for name, pieces in reads.items()} == sizes
    kernel = reads["model.layers.0.mlp.up_proj.weight"]
    assert len(kernel) == jax.device_count(), "32 x 48 is split over every device"


def test_one_message_names_all_missing_unexpected_misshaped_and_mistyped_tensors(tiny, tmp_path):
    save_params(tmp_path, tiny.architecture, tiny.params)
    edit(
        tmp_path,
        model__norm__weight=None,
        model__layers__1__self_attn__k_proj__bias=None,
        model__layers__2__mlp__up_proj__weight=np.zeros((48, 32), np.float32),
        model__layers__0__mlp__up_proj__weight=np.zeros((48, 31), np.float32),
        model__layers__0__mlp__down_proj__weight=np.zeros((32, 48), np.int8),
    )
    with pytest.raises(UnsupportedModel) as error:
        load(tmp_path, tiny)
    for named in (
        str(tmp_path),
        "missing model.norm.weight",
        "missing model.layers.1.self_attn.k_proj.bias",
        "unexpected model.layers.2.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight has shape (48, 31), the configuration asks for (48, 32)",
        "model.layers.0.mlp.down_proj.weight is of type I8; expected one of F32, BF16, F16",
    ):
        assert named in str(error.value)
    assert str(error.value).count(";") == 4 + 1  # and no other


def test_checkpoint_of_another_family_is_refused(tiny, tiny_network, tmp_path):
    save_params(tmp_path, tiny.architecture, tiny.params)
    with pytest.raises(UnsupportedModel, match="missing model.layers.0.self_attn.q_norm.*unexpected.*q_proj.bias"):
        load(tmp_path, tiny_network(model_type="qwen3"))


def test_tied_checkpoint_may_store_its_embedding_as_head_but_no_other_head(tiny, tmp_path):
    save_params(tmp_path, tiny.architecture, tiny.params)
    head = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"].copy()
    edit(tmp_path, lm_head__weight=head)
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path, tiny), tiny.params)
    head[-1, -1] += 1
    edit(tmp_path, lm_head__weight=head)
    with pytest.raises(UnsupportedModel, match="tie_word_embeddings=true, but lm_head.weight differs"):
        load(tmp_path, tiny)


def test_untied_checkpoint_without_its_head_is_refused(tiny, tiny_untied, tmp_path):
    save_params(tmp_path, tiny.architecture, tiny.params)
    with pytest.raises(UnsupportedModel, match="missing lm_head.weight"):
        load(tmp_path, tiny_untied)


def test_non_finite_values_are_refused_in_reading_and_writing(tiny, tmp_path):
    save_params(tmp_path, tiny.architecture, tiny.params)
    edit(tmp_path, model__norm__weight=np.array([1, np.nan] * 16, np.float32))
    with pytest.raises(UnsupportedModel, match=r"norm.weight in .*model.safetensors has values that are NaN or inf"):
        load(tmp_path, tiny)
    for value, dtype, message in ((np.inf, "float32", "NaN or infinite"), (1e5, "float16", "too large for float16")):
        params = tiny.params | {"norm": {"scale": np.full(32, value, np.float32)}}
        with pytest.raises(UnsupportedModel, match=f"model.norm.weight has values that are {message}"):
            save_params(tmp_path / "out", tiny.architecture, params, dtype=dtype)


def test_every_parameter_has_exactly_one_stored_name(tiny_network):
    for family in FAMILIES.values():
        network = tiny_network(**family)
        names = list(parameter_names(network.architecture))
        assert len({name for _, name, _ in names}) == len({path for path, _, _ in names}) == len(names)
        assert len(names) == len(jax.tree.leaves(network.params))
