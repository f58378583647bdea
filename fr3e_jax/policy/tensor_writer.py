"""Safetensors shards, written one after the other: the host holds the tensors of one shard at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
from safetensors.numpy import save_file

from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.tensor_files import INDEX, SINGLE


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to write. ``fetch()`` returns its array, of ``shape`` and any float type; it is called once."""

    name: str
    shape: tuple[int, ...]
    fetch: Callable[[], np.ndarray]


def write_shards(directory: Path, tensors: Sequence[StoredTensor], dtype: np.dtype, max_shard_bytes: int) -> None:
    """Write ``model.safetensors``, or ``model-00001-of-0000N.safetensors`` ... and ``model.safetensors.index.json``.

    Raises:
      UnsupportedModel: a value is NaN or infinite, or becomes infinite as ``dtype``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shards = split_into_shards(tensors, dtype.itemsize, max_shard_bytes)
    count = len(shards)
    names = [SINGLE] if count == 1 else [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_file(directory / name, shard, dtype)
    if count > 1:
        total = sum(math.prod(tensor.shape) for tensor in tensors)
        index = {
            "metadata": {"total_parameters": total, "total_size": total * dtype.itemsize},
            "weight_map": {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
        }
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def split_into_shards(tensors: Sequence[StoredTensor], itemsize: int, max_bytes: int) -> list[list[StoredTensor]]:
    """The tensors in order, in shards as full as ``max_bytes`` allows; a larger tensor is a shard of its own."""
    shards: list[list[StoredTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        size = math.prod(tensor.shape) * itemsize
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += size
    return shards


def write_file(path: Path, tensors: Sequence[StoredTensor], dtype: np.dtype) -> None:
    """Write one safetensors file; raises as `write_shards`."""
    arrays = {tensor.name: _converted(tensor, dtype) for tensor in tensors}
    save_file(arrays, path, metadata={"format": "pt"})  # without it transformers refuses the file


def _converted(tensor: StoredTensor, dtype: np.dtype) -> np.ndarray:
    array = tensor.fetch()
    if array.shape != tensor.shape:
        raise ValueError(f"{tensor.name} has shape {array.shape}; expected {tensor.shape}")
    with np.errstate(over="ignore"):  # reported below, with the tensor's name
        converted = np.ascontiguousarray(array, dtype)
    if not np.isfinite(converted).all():
        problem = f"too large for {dtype.name}" if np.isfinite(array).all() else "NaN or infinite"
        raise UnsupportedModel(f"{tensor.name} has values that are {problem}; such weights are not written")
    return converted
