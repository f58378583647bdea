"""Reading and writing safetensors: choice of files, refusals before any tensor is read, slices, shards."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.tensor_files import INDEX, SINGLE, TensorFiles
from fr3e_jax.policy.tensor_writer import StoredTensor, split_into_shards, write_shards

MATRIX = np.arange(24, dtype=np.float32).reshape(4, 6)
TENSORS = {"a": MATRIX, "b": MATRIX + 100, "c": np.arange(5, dtype=np.float32)}
ALL = (slice(None), slice(None))


def stored(tensors=TENSORS):
    return [StoredTensor(name, array.shape, lambda array=array: array) for name, array in tensors.items()]


@pytest.fixture
def sharded(tmp_path):
    """a, b and c in three files, with an index."""
    write_shards(tmp_path, stored(), np.dtype(np.float32), max_shard_bytes=100)
    shards = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*shards, INDEX]
    return tmp_path


def refusal(directory) -> str:
    with pytest.raises(UnsupportedModel) as error:
        TensorFiles(directory)
    assert str(directory) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("block", [1, 50, 10**6])
def test_slices_are_the_requested_ones_at_any_block_size(tmp_path, monkeypatch, dtype, block):
    monkeypatch.setattr("fr3e_jax.policy.tensor_files._BLOCK_BYTES", block)
    save_file({"a": MATRIX.astype(dtype)}, tmp_path / SINGLE)
    files = TensorFiles(tmp_path)
    assert files.names == {"a"} and files.shape("a") == (4, 6)
    part = (slice(1, 3), slice(2, None))
    plain = files.read("a", part, np.dtype(np.float32))
    np.testing.assert_array_equal(plain, MATRIX[part])
    turned = files.read("a", part, np.dtype(ml_dtypes.bfloat16), transposed=True)
    np.testing.assert_array_equal(turned.astype(np.float32), MATRIX.T[part])
    assert turned.dtype == ml_dtypes.bfloat16 and plain.flags.c_contiguous and turned.flags.c_contiguous
    assert files.read("a", ALL, np.dtype(np.float32), transposed=True).shape == (6, 4)


def test_written_tensors_are_read_back_by_safetensors(tmp_path):
    write_shards(tmp_path, stored(), np.dtype(ml_dtypes.bfloat16), max_shard_bytes=10**6)
    (file,) = tmp_path.iterdir()
    assert file.name == SINGLE
    read = load_file(file)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(read[name], array.astype(ml_dtypes.bfloat16))


def test_transposed_arrays_are_written_in_memory_order(tmp_path):
    write_shards(tmp_path, stored({"t": MATRIX.T, "s": MATRIX[::2, ::-1]}), np.dtype(np.float32), 10**6)
    read = load_file(tmp_path / SINGLE)
    np.testing.assert_array_equal(read["t"], MATRIX.T)
    np.testing.assert_array_equal(read["s"], MATRIX[::2, ::-1])


def test_shards_are_filled_in_order_and_a_larger_tensor_has_its_own():
    tensors = [StoredTensor(str(n), (size,), lambda: np.zeros(0)) for n, size in enumerate([3, 3, 4, 30, 1, 2])]
    sizes = [[tensor.shape[0] for tensor in shard] for shard in split_into_shards(tensors, 4, 40)]
    assert sizes == [[3, 3, 4], [30], [1, 2]]


def test_the_index_names_the_file_of_every_tensor(sharded):
    index = json.loads((sharded / INDEX).read_text())
    assert index["metadata"] == {"total_parameters": 53, "total_size": 212}
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(load_file(sharded / index["weight_map"][name])[name], array)


def test_shards_are_found_by_their_index(sharded):
    files = TensorFiles(sharded)
    assert files.names == TENSORS.keys()
    np.testing.assert_array_equal(files.read("b", ALL, np.dtype(np.float32)), TENSORS["b"])


def test_shards_without_an_index_are_refused(sharded):
    (sharded / INDEX).rename(sharded / "config.json")
    message = refusal(sharded)
    assert message.startswith("no model.safetensors or model.safetensors.index.json in")
    assert "copy all the files of the model; it holds config.json, model-00001-of-00003.safetensors" in message


def test_files_of_no_checkpoint_are_ignored(sharded):
    (sharded / "adapter_model.safetensors").write_bytes(b"not one of ours")
    (sharded / "consolidated.safetensors").write_bytes(b"")
    files = TensorFiles(sharded)
    assert files.names == TENSORS.keys()


def test_missing_shards_are_named(sharded):
    for n in (1, 2):
        (sharded / f"model-0000{n}-of-00003.safetensors").unlink()
    assert "lacks model-00001-of-00003.safetensors, model-00002-of-00003.safetensors" in refusal(sharded)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {"a": "../../a.safetensors"}}', "\xff"])
def test_damaged_index_is_refused_with_its_path(sharded, content):
    (sharded / INDEX).write_bytes(content.encode("latin-1"))
    message = refusal(sharded)
    assert INDEX in message and ("copy it again" in message or "expected a JSON object" in message)


@pytest.mark.parametrize("keep", [0, 4, 40, 0.5, -1])
def test_truncated_file_is_refused_with_its_path(sharded, keep):
    file = sharded / "model-00002-of-00003.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    assert "model-00002-of-00003.safetensors is not a complete safetensors file" in refusal(sharded)


def test_directory_without_safetensors_is_refused_with_the_expected_names(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "no model.safetensors or model.safetensors.index.json in" in refusal(tmp_path)


def test_two_checkpoints_in_one_directory_are_refused(sharded):
    save_file(TENSORS, sharded / SINGLE)
    assert "holds two checkpoints" in refusal(sharded)


def test_tensor_in_two_files_is_refused(sharded):
    save_file(TENSORS, sharded / "model-00002-of-00003.safetensors")
    with pytest.raises(UnsupportedModel, match="a is both in model-00001-of-00003.safetensors and in model-"):
        TensorFiles(sharded)
