"""Weights read from and written to a Hugging Face directory: names and layouts, tensor by tensor.

PyTorch stores a projection as ``[out, in]``; this network uses ``[in, out]``. Files have a tensor for each expert, and
this network one array for all experts of a layer. All other tensors are the same. Reading and writing hold one tensor
on the host at a time (reading: that of all experts), besides the arrays on the devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from fr3e_jax.policy.architecture import Architecture, UnsupportedModel
from fr3e_jax.policy.network import Params
from fr3e_jax.policy.tensor_files import READABLE, TensorFiles
from fr3e_jax.policy.tensor_writer import StoredTensor, write_shards

MAX_SHARD_BYTES = 5 * 10**9
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
_MLP = ("gate", "up", "down")


def _block_names(architecture: Architecture, layer: int) -> dict[tuple, str]:
    """Path in a block of ``params`` -> Hugging Face's name in a layer."""
    names: dict[tuple, str] = {}
    for ours, theirs in _ATTENTION.items():
        names["attention", ours, "kernel"] = f"self_attn.{theirs}.weight"
        if architecture.attention_bias if ours == "out" else architecture.qkv_bias:
            names["attention", ours, "bias"] = f"self_attn.{theirs}.bias"
    if architecture.family.qk_norm:
        names["attention", "query_norm", "scale"] = "self_attn.q_norm.weight"
        names["attention", "key_norm", "scale"] = "self_attn.k_norm.weight"
    names |= {(ours, "scale"): f"{theirs}.weight" for ours, theirs in architecture.family.norms.items()}
    if not architecture.is_sparse(layer):
        return names | {(kind, "kernel"): f"mlp.{kind}_proj.weight" for kind in _MLP}
    names["experts", "router", "kernel"] = "mlp.gate.weight"
    each = range(architecture.num_experts)
    return names | {("experts", kind, n): f"mlp.experts.{n}.{kind}_proj.weight" for n in each for kind in _MLP}


def parameter_names(architecture: Architecture) -> Iterator[tuple[tuple, str, bool]]:
    """(path in ``params``, Hugging Face name, whether it is stored transposed) of every tensor of a checkpoint.

    A path that ends with a number is that entry on the first axis of an array (an expert's).
    """
    yield ("embedding",), EMBEDDING, False
    for layer in range(architecture.num_layers):
        for path, name in _block_names(architecture, layer).items():
            flip = path[-1] == "kernel" or isinstance(path[-1], int)
            yield ("layers", layer, *path), f"model.layers.{layer}.{name}", flip
    yield ("norm", "scale"), "model.norm.weight", False
    if not architecture.tie_word_embeddings:
        yield ("head",), HEAD, True


def stored_shapes(architecture: Architecture, abstract: Params) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the checkpoint, by its Hugging Face name."""
    leaves = ((at(abstract, path), name, flip) for path, name, flip in parameter_names(architecture))
    return {name: leaf.shape[::-1] if flip else leaf.shape for leaf, name, flip in leaves}


def at(tree: Any, path: tuple) -> Any:
    """The part of nested dictionaries at ``path``, whose last key may be an entry on the first axis of an array."""
    for key in path:
        tree = tree[key] if isinstance(tree, dict) else _entry(tree, key)
    return tree


def put(tree: dict, path: tuple, value: Any) -> None:
    """Set the value at ``path`` of nested dictionaries, which are made where they are missing."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _entry(array: Any, index: int) -> Any:
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
    # Not array[number], which would compile a program for each number.
    return jax.lax.dynamic_index_in_dim(array, index, 0, False) if isinstance(array, jax.Array) else array[index]


def _arrays(architecture: Architecture) -> Iterator[tuple[tuple, bool, list[str]]]:
    """(path, whether it is stored transposed, names of its tensors) of every array of ``params``."""
    names: dict[tuple[tuple, bool], list[str]] = {}
    for path, name, transposed in parameter_names(architecture):
        array = path[:-1] if isinstance(path[-1], int) else path
        names.setdefault((array, transposed), []).append(name)
    return ((*array, tensors) for array, tensors in names.items())


def load_params(
    directory: str | Path, architecture: Architecture, abstract: Params, shardings: Params | None = None
) -> Params:
    """Device arrays of the checkpoint in ``directory``; each device reads its own slices from the files.

    Args:
      directory: contains model.safetensors, or shards and their index.
      architecture: of its config.json (`config_file.read_architecture`).
      abstract: shapes and types to convert to (`network.build_network`).
      shardings: a `jax.sharding.Sharding` for each parameter; None puts all on the first device.

    Raises:
      UnsupportedModel: tensors are missing, unexpected, mis-shaped or mis-typed (one message names all); a file is
        missing or damaged; a tied model's file holds another head.
    """
    if shardings is None:
        everywhere = SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: everywhere, abstract)
    params: Params = {}
    files = TensorFiles(directory)
    _check_tensors(files, architecture, stored_shapes(architecture, abstract))
    for path, transposed, names in _arrays(architecture):
        put(params, path, load_array(files, names, transposed, at(abstract, path), at(shardings, path)))
    return params


def _check_tensors(files: TensorFiles, architecture: Architecture, expected: dict[str, tuple[int, ...]]) -> None:
    repeated = {HEAD} if architecture.tie_word_embeddings else set()
    if problems := misfits(files, expected, repeated):
        raise UnsupportedModel(f"{files.directory} does not fit its config.json: {'; '.join(problems)}")
    if repeated & files.names and not _same_tensor(files, EMBEDDING, HEAD):
        raise UnsupportedModel(
            f"{files.directory}: config.json says tie_word_embeddings=true, but {HEAD} differs from {EMBEDDING}; "
            "set it to false if the head is meant"
        )


def misfits(files: TensorFiles, expected: dict[str, tuple[int, ...]], ignored: Set[str] = frozenset()) -> list[str]:
    """A line for each tensor that is missing, mis-shaped, mis-typed, or neither among ``expected`` nor ``ignored``."""
    problems = []
    for name, shape in expected.items():
        if name not in files.names:
            problems.append(f"missing {name}")
            continue
        if files.shape(name) != shape:
            problems.append(f"{name} has shape {files.shape(name)}, the configuration asks for {shape}")
        if files.dtype(name) not in READABLE:
            problems.append(f"{name} is of type {files.dtype(name)}; expected one of {', '.join(READABLE)}")
    return problems + [f"unexpected {name}" for name in sorted(files.names - expected.keys() - ignored)]


def _same_tensor(files: TensorFiles, name: str, other_name: str, rows: int = 4096) -> bool:
    if files.shape(name) != files.shape(other_name) or files.dtype(name) != files.dtype(other_name):
        return False
    parts = [(slice(start, start + rows), slice(None)) for start in range(0, files.shape(name)[0], rows)]
    float32 = np.dtype(np.float32)
    return all(
        np.array_equal(files.read(name, rows_read, float32), files.read(other_name, rows_read, float32))
        for rows_read in parts
    )


def load_array(
    files: TensorFiles, names: list[str], transposed: bool, leaf: jax.ShapeDtypeStruct, sharding: Sharding
) -> jax.Array:
    """The tensor ``names[0]`` as a device array of ``leaf``'s shape and type; ``transposed``: the file holds it so.

    Of an array with an axis more the tensors ``names`` are the entries on the first axis.
    """
    pieces: dict[tuple, np.ndarray] = {}  # replicas on several devices are read once
    stacked = len(leaf.shape) > len(files.shape(names[0]))
    read_tensor = partial(files.read, dtype=leaf.dtype, transposed=transposed)

    def read(index: tuple[slice, ...]) -> np.ndarray:
        key = tuple((bound.start, bound.stop) for bound in index)
        if key not in pieces:
            entries = [read_tensor(name, index[stacked:]) for name in (names[index[0]] if stacked else names)]
            pieces[key] = np.stack(entries) if stacked else entries[0]
        return pieces[key]

    array = jax.make_array_from_callback(leaf.shape, sharding, read, dtype=leaf.dtype)
    # Transfers run in the background: without waiting, the host would hold every tensor whose transfer is under way.
    return jax.block_until_ready(array)


def save_params(
    directory: str | Path,
    architecture: Architecture,
    params: Params,
    *,
    dtype: str = "float32",
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write ``model.safetensors``, or shards of at most ``max_shard_bytes`` and their index, into ``directory``.

    A tensor larger than ``max_shard_bytes`` gets a shard of its own.

    Raises:
      UnsupportedModel: a value is NaN or infinite, or too large for ``dtype``.
    """
    shapes = stored_shapes(architecture, params)
    tensors = [
        StoredTensor(name, shapes[name], lambda path=path, flip=transposed: host_tensor(at(params, path), flip))
        for path, name, transposed in parameter_names(architecture)
    ]
    write_shards(Path(directory), tensors, np.dtype(dtype), max_shard_bytes)


def host_tensor(array: Any, transposed: bool) -> np.ndarray:
    """A device array on the host; ``transposed``: with its two dimensions exchanged."""
    host = _gathered(array) if isinstance(array, jax.Array) else np.asarray(array)
    return host.T if transposed else host


def _gathered(array: jax.Array) -> np.ndarray:
    if not array.is_fully_addressable:
        raise ValueError("the weights lie on several processes; write their checkpoint with `fr3e export` on one")
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    if len(shards) == 1:
        return _fetched(shards[0].data)
    host = np.empty(array.shape, array.dtype)
    for shard in shards:
        host[shard.index] = _fetched(shard.data)
    return host


def _fetched(data: jax.Array) -> np.ndarray:
    # On CPU, NumPy reads the device's memory itself. Elsewhere a jax.Array keeps the host copy that it makes, and all
    # tensors would stay on the host. So a copy of the array is fetched, and dropped together with its host copy.
    return np.asarray(data if next(iter(data.devices())).platform == "cpu" else data.copy())
