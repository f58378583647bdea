"""Readers of dataset files: JSONL and JSON (plain or gzipped), Parquet, and prepared TFDS datasets."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fr3e_jax.data.jsonl import GZIP_MAGIC, read_rows
from fr3e_jax.hub import SCHEME, dataset_files
from fr3e_jax.stores.copies import fetched_files, fetched_folder
from fr3e_jax.stores.objects import is_remote, join, store_of

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
FORMATS = ("auto", "jsonl", "json", "parquet", "tfds")

Row = Mapping[str, Any]


def find_files(patterns: Sequence[str], root: str, owner: str) -> list[Path]:
    """The files of the first pattern that matches, in the order of their names.

    Args:
      patterns: paths or globs, absolute, relative to ``root``, or on the Hugging Face hub (``hf://datasets/...``).
      root: ``data.root``, a folder or an address in an object store; empty for the working directory.
      owner: the owner of the files, for the error message.

    Raises:
      FileNotFoundError: no pattern matches a file, or the hub does not give one of its own.
    """
    refused = ""
    for pattern in patterns:
        try:
            if files := _matching_files(pattern, root, owner):
                return files
        except FileNotFoundError as error:
            refused = f"; {error}"
    raise FileNotFoundError(
        f"no file of {owner} under data.root={root or '(empty: the working directory)'}; looked for "
        f"{', '.join(patterns)}; set data.root to the directory that has one of them{refused}"
    )


def _matching_files(pattern: str, root: str, owner: str) -> list[Path]:
    """The files of one pattern, fetched if they are remote; raises FileNotFoundError if the hub refuses them."""
    address = join(root, pattern) if is_remote(root) and not pattern.startswith(("/", "~", SCHEME)) else pattern
    if is_remote(address):
        with store_of("data.root" if address != pattern else owner):
            return fetched_files(address)
    if pattern.startswith(SCHEME):
        return dataset_files(pattern, owner)
    path = Path(root).expanduser() / Path(pattern).expanduser()
    if path.is_file():
        return [path]
    anchor = Path(path.anchor or ".")
    return sorted(file for file in anchor.glob(str(path.relative_to(path.anchor))) if file.is_file())


def format_of(path: Path, declared: str = "auto") -> str:
    """The declared format, or for ``auto`` that of the file's suffix; raises ValueError for an unknown suffix."""
    if declared != "auto":
        return declared
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} has the suffix {suffix!r}; expected one of {', '.join(SUFFIXES)}, or set format")
    return SUFFIXES[suffix]


def read_file(path: Path, declared: str, dropped: Counter[str]) -> Iterator[Row]:
    """The rows of one file. Rows that are not objects are counted as ``malformed_row`` in ``dropped``.

    Raises:
      ValueError: the file is damaged or has another format.
    """
    kind = format_of(path, declared)
    if kind == "jsonl":
        return read_rows(path, dropped)
    if kind == "json":
        return _objects(_json_rows(path), dropped)
    return _parquet_rows(path)


def _objects(rows: Iterable[Any], dropped: Counter[str]) -> Iterator[Row]:
    for row in rows:
        if isinstance(row, dict):
            yield row
        else:
            dropped["malformed_row"] += 1


def _json_rows(path: Path) -> list[Any]:
    """The rows of a JSON file: those of its list, or its single object (the layout of hendrycks/math)."""
    try:
        content = path.read_bytes()
        content = json.loads(gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}); download it again, or set its format") from error
    return content if isinstance(content, list) else [content]


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches():
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # each of them for some flipped bit
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read as Parquet ({reason}); download it again") from error


def read_tfds(builder: str, split: str, data_dir: str, owner: str) -> Iterator[Row]:
    """The rows of a prepared TFDS dataset, with texts as ``str``. It needs neither TensorFlow nor the builder's code.

    Args:
      builder: ``name[/config][:version]``.
      split: one of its splits.
      data_dir: the folder in which it was prepared; empty for TFDS's own default.
      owner: the owner of the rows, for the error message.

    Raises:
      FileNotFoundError: no dataset of this name was prepared there.
      ValueError: there is no such split, or only TensorFlow can read the files.
    """
    source = _open_tfds(builder, split, data_dir, owner)
    for index in range(len(source)):
        try:
            yield plain(source[index])
        except Exception as error:  # the readers of array_record and protobuf raise many kinds
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{owner}: row {index} of TFDS {builder} in {data_dir or 'the default folder'} cannot be read "
                f"({type(error).__name__}: {reason}); prepare the dataset again"
            ) from error


def _open_tfds(builder: str, split: str, data_dir: str, owner: str) -> Sequence[Any]:
    from tensorflow_datasets.core import constants, read_only_builder, registered

    if is_remote(data_dir):  # the builder's folder alone
        name = builder.split("/")[0].split(":")[0]
        data_dir = str(fetched_folder(join(data_dir, name)).parent)
    folder = str(Path(data_dir).expanduser()) if data_dir else constants.DATA_DIR
    try:
        dataset = read_only_builder.builder_from_files(builder, data_dir=folder)
    except registered.DatasetNotFoundError:
        raise FileNotFoundError(
            f"{owner}: no TFDS dataset {builder} is prepared in {folder}; prepare it with "
            "tfds.builder(NAME, data_dir=DIR, file_format='array_record').download_and_prepare() and set data.root=DIR"
        ) from None
    if split not in dataset.info.splits:
        raise ValueError(f"{owner}: TFDS {builder} has no split {split!r}; it has {', '.join(dataset.info.splits)}")
    try:
        return dataset.as_data_source(split)
    except NotImplementedError:
        raise ValueError(
            f"{owner}: TFDS {builder} in {folder} has the file format {dataset.info.file_format.value}, which only "
            "TensorFlow can read; prepare it again with file_format='array_record'"
        ) from None


def plain(value: Any) -> Any:
    """The value in Python's own types: bytes become text, arrays become lists, numpy scalars become numbers."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    return value
