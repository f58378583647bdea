"""Readers of dataset files: JSONL, JSON and CSV (plain or gzipped), Parquet, and prepared TFDS datasets."""

from __future__ import annotations

import csv
import gzip
import io
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

SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"
}  # fmt: skip
FORMATS = ("auto", "jsonl", "json", "csv", "parquet", "tfds")
_PARQUET, _POINTER = b"PAR1", b"version https://git-lfs"  # the first bytes of such files
NO_ROWS = "has no usable row; expected JSON objects, or lines of CSV with as many cells as the header"

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
    with path.open("rb") as stream:
        head = stream.read(len(_POINTER))
    if not head:
        return iter(())
    if head == _POINTER:
        raise ValueError(f"{path} is a pointer of Git LFS; expected the file itself, which git lfs pull fetches")
    if head.startswith(_PARQUET) and declared == "auto":
        kind = "parquet"
    if kind == "jsonl":
        return read_rows(path, dropped)
    if kind == "json":
        return _objects(_json_rows(path, dropped), dropped)
    return _csv_rows(path, dropped) if kind == "csv" else _parquet_rows(path)


def _objects(rows: Iterable[Any], dropped: Counter[str]) -> Iterator[Row]:
    for row in rows:
        if isinstance(row, dict):
            yield row
        else:
            dropped["malformed_row"] += 1


def _json_rows(path: Path, dropped: Counter[str]) -> Iterable[Any]:
    """The rows of a JSON file: those of its list, or of the one in its object; else its object (hendrycks/math).

    Lines of JSON objects are read as such.
    """
    try:
        content = path.read_bytes()
        content = json.loads(gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return read_rows(path, dropped)
        raise ValueError(
            f"{path} cannot be read as JSON ({error}); expected a list of objects: mend or copy it again, or set its "
            "format"
        ) from error
    if not isinstance(content, dict):
        return content if isinstance(content, list) else [content]
    lists = {name: value for name, value in content.items() if isinstance(value, list | dict)}
    of_rows = [name for name, rows in lists.items() if isinstance(rows, list) and rows and isinstance(rows[0], dict)]
    if len(of_rows) == len(content) == 1:
        return lists[of_rows[0]]
    if content and len(lists) == len(content) and (len(of_rows) == len(content) or not of_rows):
        found = "several lists of rows" if of_rows else "columns"
        raise ValueError(f"{path} holds {found} ({', '.join(content)}); expected one list of objects, a row each")
    return [content]


def _csv_rows(path: Path, dropped: Counter[str]) -> Iterator[Row]:
    """The rows of a CSV file with a header; columns are separated by the comma, semicolon or tab that it has most."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content).decode("utf-8-sig")
        header = text.lstrip().partition("\n")[0]
        rows = csv.DictReader(
            io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count), strict=True, skipinitialspace=True
        )
        names = Counter(rows.fieldnames or ())
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"{path} has the column {twice[0]!r} twice; rename one of them")
        for row in rows:
            if None in row or None in row.values():  # more cells than columns, or fewer
                dropped["malformed_row"] += 1
            else:
                yield row
    except (EOFError, zlib.error, gzip.BadGzipFile, csv.Error, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(
            f"{path} cannot be read as CSV ({reason}); expected a line of column names, then rows, in UTF-8"
        ) from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches():
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # each of them for some flipped bit
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read as Parquet ({reason}); copy or download it again") from error


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
