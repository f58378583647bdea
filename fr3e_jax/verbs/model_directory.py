"""A directory that appears whole or not at all, and replaces only an earlier export."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fr3e_jax.runs.run_directory import write_json_atomic

RECORD = "fr3e_export.json"  # lists the files of an export, which a later export may replace


def check_replaceable(directory: str | Path) -> Path:
    """``directory`` as an absolute path without links.

    Raises:
      FileExistsError: it is a file, or holds something that no export wrote.
    """
    target = Path(directory).expanduser().resolve()
    if not target.exists():
        return target
    if not target.is_dir():
        raise FileExistsError(f"{target} is a file; expected a directory to write a model into")
    found = {path.name for path in target.iterdir()}
    if not found:
        return target
    instead = "expected a new or empty directory, or an earlier export, which is replaced: name another, or empty it"
    written = _recorded_files(target)
    if not written:
        raise FileExistsError(f"{target} is not empty and was not written by fr3e (it has no {RECORD}); {instead}")
    if foreign := sorted(found - written - {RECORD}):
        raise FileExistsError(f"{target} holds {', '.join(foreign)}, which no export wrote; {instead}")
    return target


def _recorded_files(target: Path) -> set[str]:
    try:
        return set(json.loads((target / RECORD).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):  # no record, or not a record of fr3e
        return set()


@contextlib.contextmanager
def replaced_directory(directory: str | Path, record: dict[str, Any]) -> Iterator[Path]:
    """An empty directory to fill; it becomes ``directory`` when the block ends, and vanishes when the block raises.

    Args:
      directory: new, empty, or an earlier export.
      record: notes to save besides the list of its files.

    Raises:
      FileExistsError: see `check_replaceable`; checked again at the end, when hours may have passed.
    """
    target = check_replaceable(directory)
    # The names beside the target are fixed: the next writer overwrites the remains of a killed one.
    filled, former = target.with_name(f".{target.name}.tmp"), target.with_name(f".{target.name}.former")
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove(filled)
    filled.mkdir()
    try:
        yield filled
        files = sorted(path.name for path in filled.iterdir())
        write_json_atomic(filled / RECORD, record | {"files": files})
        check_replaceable(target)
        _exchange(filled, target, former)
    finally:
        _remove(filled)


def _exchange(filled: Path, target: Path, former: Path) -> None:
    if target.exists():
        _remove(former)
        os.rename(target, former)
    try:
        os.rename(filled, target)
    except OSError:
        if former.exists():
            os.rename(former, target)
        raise
    _remove(former)


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
