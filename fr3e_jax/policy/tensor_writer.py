"""Safetensors shards, written tensor by tensor: the header first, from shapes alone, then one tensor after the other.

safetensors' own writer takes all tensors of a file at once; this one holds one at a time. Format: eight bytes with the
length of the header, the header (JSON: type, shape and byte range of every tensor), then the tensors in memory order
without gaps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.tensor_files import INDEX, SINGLE

TYPE_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_BLOCK_BYTES = 16 * 2**20


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
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    end = 0
    for tensor in tensors:
        start, end = end, end + math.prod(tensor.shape) * dtype.itemsize
        header[tensor.name] = {
            "dtype": TYPE_NAMES[dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            _write_tensor(stream, tensor, dtype)
        stream.flush()
        os.fsync(stream.fileno())


def _write_tensor(stream: IO[bytes], tensor: StoredTensor, dtype: np.dtype) -> None:
    array = tensor.fetch()
    if array.shape != tensor.shape:
        raise ValueError(f"{tensor.name} has shape {array.shape}; expected {tensor.shape}")
    step = max(1, _BLOCK_BYTES // max(1, math.prod(array.shape[1:]) * dtype.itemsize))
    for start in range(0, len(array), step):
        rows_written = array[start : start + step]
        with np.errstate(over="ignore"):  # reported below, with the tensor's name
            block = np.ascontiguousarray(rows_written, dtype)
        if not np.isfinite(block).all():
            problem = f"too large for {dtype.name}" if np.isfinite(rows_written).all() else "NaN or infinite"
            raise UnsupportedModel(f"{tensor.name} has values that are {problem}; such weights are not written")
        stream.write(block.view(np.uint8).data)
