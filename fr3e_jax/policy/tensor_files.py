"""The safetensors files of a Hugging Face directory: the file of each tensor, and slices of one tensor at a time.

Only the requested part of a tensor is read, when it is requested: a checkpoint may be larger than the host's memory.
"""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy before safetensors reads it)
import numpy as np
from safetensors import SafetensorError, safe_open

from fr3e_jax.model_folder import POINTER, description, is_pointer
from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.config_file import read_json_object

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
READABLE = ("F32", "BF16", "F16")  # types as safetensors spells them
_BLOCK_BYTES = 16 * 2**20


class TensorFiles:
    """The tensors of ``model.safetensors``, or of the shards that an index names, by name."""

    def __init__(self, directory: str | Path, file: str = ""):
        """Read the files' headers. ``file``: the one file to read, where it is not the model's.

        Raises:
          UnsupportedModel: there are no files, one is missing or damaged, or two hold the same tensor.
        """
        self.directory = Path(directory)
        self._kinds: dict[str, tuple[tuple[int, ...], str]] = {}  # shape and type of each tensor
        self._files: dict[str, str] = {}
        for name in [file] if file else self._model_files():
            self._look_into(name)

    def _model_files(self) -> list[str]:
        """The files that the index names, all of which exist; without an index the single file."""
        path = self.directory / INDEX
        if not path.is_file():
            if (self.directory / SINGLE).is_file():
                return [SINGLE]
            raise UnsupportedModel(
                f"no {SINGLE} or {INDEX} in {self.directory}: other formats, other names and shards without their "
                f"index are not read, so copy all the files of the model; {description(self.directory)}"
            )
        index = read_json_object(path).get("weight_map")
        if not isinstance(index, dict) or not index or any(Path(str(f)).name != f for f in index.values()):
            raise UnsupportedModel(f"{path} has no weight_map from tensors to file names; copy it again")
        files = sorted(set(index.values()))
        if SINGLE not in files and (self.directory / SINGLE).exists():
            raise UnsupportedModel(
                f"{self.directory} holds two checkpoints, {SINGLE} and the files that {INDEX} names; "
                "remove the one that is not meant"
            )
        if missing := [file for file in files if not (self.directory / file).is_file()]:
            raise UnsupportedModel(
                f"{self.directory} lacks {', '.join(missing)}, which {INDEX} names; copy all the files"
            )
        return files

    def _look_into(self, file: str) -> None:
        try:
            with safe_open(self.directory / file, "numpy") as tensors:
                slices = {name: tensors.get_slice(name) for name in tensors.keys()}
                kinds = {name: (tuple(tensor.get_shape()), tensor.get_dtype()) for name, tensor in slices.items()}
        except (SafetensorError, OSError) as error:
            where = self.directory / file
            if where.is_file() and is_pointer(where):
                raise UnsupportedModel(f"{where} {POINTER}") from error
            raise UnsupportedModel(f"{where} is not a complete safetensors file ({error}); copy it again") from error
        if twice := sorted(self._kinds.keys() & kinds.keys()):
            raise UnsupportedModel(f"{twice[0]} is both in {self._files[twice[0]]} and in {file}; expected it once")
        self._kinds |= kinds
        self._files |= dict.fromkeys(kinds, file)

    @property
    def names(self) -> set[str]:
        return set(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._kinds[name][0]

    def dtype(self, name: str) -> str:
        """The tensor's type in safetensors' spelling, such as ``"BF16"``."""
        return self._kinds[name][1]

    def read(self, name: str, index: tuple[slice, ...], dtype: np.dtype, *, transposed: bool = False) -> np.ndarray:
        """A part of a tensor as a new array in memory order.

        Args:
          index: slices without steps, in the order of the result's dimensions.
          dtype: type to convert to.
          transposed: the file holds the matrix with its two dimensions exchanged.

        Raises:
          UnsupportedModel: a value is NaN or infinite, which no trained weight is.
        """
        path, shape = self.directory / self._files[name], self.shape(name)
        ranges = [
            range(size)[piece_range]
            for size, piece_range in zip(shape, index[::-1] if transposed else index, strict=True)
        ]
        sizes = [len(r) for r in ranges]
        result = np.empty(sizes[::-1] if transposed else sizes, dtype)
        rows, *others = ranges
        as_stored = result.T if transposed else result
        # By blocks of rows: converting and transposing a whole tensor at once would hold it twice.
        step = max(1, _BLOCK_BYTES // max(1, 4 * math.prod(sizes[1:])))
        # Opened for this part alone: pages read from a mapped file count as the process's memory until it is closed.
        with safe_open(path, "numpy") as tensors:
            stored = tensors.get_slice(name)
            for start in range(0, len(rows), step):
                block = rows[start : start + step]
                piece = stored[tuple(slice(r.start, r.stop) for r in (block, *others))]
                if not np.isfinite(piece).all():
                    raise UnsupportedModel(
                        f"{name} in {path} has values that are NaN or infinite: "
                        "the file is damaged, or the run that wrote it had diverged"
                    )
                as_stored[start : start + step] = piece
        return result
