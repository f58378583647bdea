"""Rows of JSONL files, plain or gzipped. Bad rows are counted; damaged files are errors."""

from __future__ import annotations

import codecs
import gzip
import json
import logging
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fr3e_jax.stores.copies import copy_of, fetched_file
from fr3e_jax.stores.objects import is_remote, store_of

logger = logging.getLogger(__name__)

MAX_WARNINGS = 5
GZIP_MAGIC = b"\x1f\x8b"


def existing_file(path: str, setting: str) -> Path:
    """``path`` as a ``Path``; raises FileNotFoundError with the setting's name unless it is a file."""
    if not path:
        raise FileNotFoundError(f"{setting} is empty, but this task reads a JSONL file; set {setting}=FILE.jsonl[.gz]")
    with store_of(setting):
        file = local_file(path)
    if not file.is_file():
        what = "is a directory" if file.is_dir() else "does not exist"
        raise FileNotFoundError(f"{setting} is {path!r}, which {what}; give the path of a file")
    return file


def local_file(path: str) -> Path:
    """The path of a file; one in an object store is fetched, unless it does not exist there."""
    if not is_remote(path):
        return Path(path).expanduser()
    try:
        return fetched_file(path)
    except FileNotFoundError:
        return copy_of(path, "fetched")


def read_rows(path: Path, dropped: Counter[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, in order. Gzip is recognised by content; empty lines are skipped.

    A file that is one JSON array has the objects of that. Lines that are not a JSON object are counted as
    ``malformed_row`` in ``dropped``. The first few are logged with file and line.

    Raises:
      ValueError: the file is incomplete, as after an interrupted download, or no line is a JSON object.
    """
    rows, fault = 0, ""
    for line_number, line in enumerate(_lines_or_items(path), start=1):
        if isinstance(line, bytes) and not line.strip():
            continue
        try:
            row = json.loads(line) if isinstance(line, bytes) else line
            if not isinstance(row, dict):
                raise ValueError(f"expected a JSON object, found {type(row).__name__}")
        except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
            fault = fault or ("is not UTF-8" if isinstance(error, UnicodeDecodeError) else "")
            if dropped["malformed_row"] < MAX_WARNINGS:
                logger.warning("%s:%d: row dropped: %s", path, line_number, error)
            dropped["malformed_row"] += 1
            continue
        rows += 1
        yield row
    if not rows and dropped["malformed_row"]:
        raise ValueError(
            f"{path} {fault or 'has no row: none of its lines is a JSON object'}; expected a JSON object a line, in "
            'UTF-8, such as {"question": "1+1?", "answer": "2"}'
        )


def _lines_or_items(path: Path) -> Iterator[Any]:
    """The lines of a file, as bytes, or the items of the one JSON array that it is."""
    lines = _lines(path)
    first = next((line for line in lines if line.strip()), b"")
    if first.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        text = [first, *lines]
        try:
            items = json.loads(b"".join(text))
        except (ValueError, RecursionError):
            yield from text
        else:
            yield from items
        return
    yield first
    yield from lines


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as raw:
        head = raw.read(2)
        packed = head == GZIP_MAGIC
        raw.seek(0)
        if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f"{path} is UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8 makes it so")
        try:
            yield from gzip.GzipFile(fileobj=raw) if packed else raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is not a complete gzip file ({error}); copy or download it again") from error
        except MemoryError:
            raise ValueError(
                f"{path} has a line that does not fit into memory; expected one JSON object a line"
            ) from None
