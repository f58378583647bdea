"""Damage of a saved checkpoint: recognised by checksums, named in one line, moved out of the way.

``folder`` is the directory of one step, ``checkpoints/12``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fr3e_jax.programs.checksums import checksums
from fr3e_jax.runs.checkpoint_content import checksum_of_json
from fr3e_jax.stores.objects import StoreFailed


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written or read."""


class DamagedCheckpoint(CheckpointFailed, ValueError):
    """The files of a checkpoint are incomplete, unreadable, or changed since they were written."""


@contextlib.contextmanager
def told_in_a_line() -> Iterator[None]:
    """Print a `CheckpointFailed` or a `StoreFailed` that comes out of the block, and go on after it."""
    try:
        yield
    except (CheckpointFailed, StoreFailed) as error:
        print(f"fr3e: {error}", file=sys.stderr)


@contextlib.contextmanager
def damage_named(folder: Path, item: str) -> Iterator[None]:
    """Turn each error of reading the files of ``item`` into a `DamagedCheckpoint` of one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        raise _damage(folder, item, f"{type(error).__name__}: {reason[:160]}") from error


def _damage(folder: Path, item: str, reason: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"the checkpoint of step {folder.name} is damaged, in {folder / item}: {reason}")


def verify_content(content: dict[str, Any]) -> dict[str, Any]:
    """The content that `content_of` made, without its own checksum.

    Raises:
      ValueError: the checksum is wrong, or a part is missing.
    """
    checksum = content.pop("checksum", None)
    older = checksum is None and "format" not in content  # `check_format` refuses it
    if not older and checksum != checksum_of_json(content):
        raise ValueError("the checksum of the host state is wrong")
    if missing := {"host", "arrays"} - content.keys():
        raise ValueError(f"it lacks {' and '.join(sorted(missing))}")
    return content


def verify_arrays(folder: Path, arrays: Mapping[str, Any], saved: Mapping[str, str]) -> None:
    """Compare restored arrays with their ``saved`` checksums.

    Raises:
      DamagedCheckpoint: a checksum differs.
    """
    wrong = sorted(name for name, checksum in checksums(arrays).items() if checksum != saved.get(name))
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise _damage(folder, "arrays", f"the checksum of {wrong[0]}{more} is wrong")


def move_aside(folder: Path) -> Path:
    """Move a damaged step out of the checkpoints, into the run's directory; return its new path."""
    target = folder.parent.parent / f"damaged_checkpoint_{int(folder.name):06d}"
    new, suffix = target, 1
    while new.exists():
        suffix += 1
        new = target.with_name(f"{target.name}_{suffix}")
    folder.rename(new)
    return new
