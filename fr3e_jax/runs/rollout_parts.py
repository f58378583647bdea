"""The parts of a stored file of rollouts: each process of a run writes its own, and readers join them in order."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fr3e_jax.runs.run_directory import RunDirectory

FILE_NAME = re.compile(r"(?P<stem>[a-z]+)_(?P<step>\d{6,})(\.(?P<index>\d+)-of-(?P<count>[1-9]\d*))?\.jsonl\.gz")
_FOLDER_NAME = re.compile(r"[a-z]+_\d{6,}")  # of the parts of a step
_ENDING = ".jsonl.gz"


@dataclass(frozen=True)
class Part:
    """Part ``index`` of ``count``: a stretch of a file's records, in their order."""

    index: int = 0
    count: int = 1

    def of(self, sizes: Sequence[int]) -> range:
        """The numbers of the records in this part; ``sizes`` of all of them, whose sums in the parts are about equal.

        Each record is in the part that holds its middle, so all records are in one part each.
        """
        if not sizes:
            return range(0)
        ends = np.cumsum(np.asarray(sizes, np.int64))
        # floor(middle / whole * count), in integers: the middle of a record is (2 end - size) / 2.
        owners = (2 * ends - np.asarray(sizes, np.int64)) * self.count // (2 * max(int(ends[-1]), 1))
        owners = np.minimum(owners, self.count - 1)  # records of size 0 at the end
        first, end = np.searchsorted(owners, [self.index, self.index + 1])
        return range(int(first), int(end))

    def path(self, file: Path) -> Path:
        """``step_000012/step_000012.0-of-4.jsonl.gz`` for ``step_000012.jsonl.gz``, or the file itself if alone.

        A step has a folder of its own: hundreds of processes write many parts.
        """
        return file if self.count == 1 else _parts_folder(file) / self.name(file)

    def name(self, file: Path) -> str:
        """Name of the part."""
        return f"{file.name.removesuffix(_ENDING)}.{self.index}-of-{self.count}{_ENDING}"


WHOLE = Part()


def rollout_path(run_dir: RunDirectory, step: int, *, stem: str = "step") -> Path:
    """The file of a step's rollouts. Several processes write parts beside it; `rollout_files` lists what is there."""
    return run_dir.rollouts / f"{stem}_{step:06d}{_ENDING}"


def rollout_files(path: Path) -> list[Path]:
    """The files that hold the records of ``path``, in order: itself, or all its parts; empty if some are missing."""
    return [path] if path.is_file() else [part.path(path) for part in _complete(_parts_of(path))]


def missing_parts(path: Path) -> str:
    """A message about the files that stand in place of ``path`` and all its parts."""
    parts = _parts_of(path)
    if not parts:
        return f"{path} is not there, and no part of it either"
    count = min(part.count for part in parts)
    lacking = [part.name(path) for part in _all_parts(count) if part not in parts]
    return f"{path} is in {count} parts, and {', '.join(lacking)} is missing"


def stored_bytes(path: Path) -> int:
    """Size on disk of the records of ``path``, whether in one file or in parts; 0 if they are not all there."""
    return sum(file.stat().st_size for file in rollout_files(path))


def stored_steps(run_dir: RunDirectory, stem: str = "step") -> list[int]:
    """The steps whose rollouts are all there, in order; those of a step that is being written are not."""
    return sorted(step for step, parts in _stored_parts(run_dir.rollouts, stem).items() if _complete(parts))


def drop_other_parts(path: Path, count: int) -> None:
    """Remove what another number of processes wrote in place of ``path``: the file itself, or its other parts."""
    for part in _parts_of(path):
        if part.count != count:
            part.path(path).unlink(missing_ok=True)
    remove_if_empty(_parts_folder(path))


def remove_if_empty(folder: Path) -> None:
    """Remove the folder of a step's parts unless it holds a file, or another process has removed it."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _parts_folder(file: Path) -> Path:
    return file.with_name(file.name.removesuffix(_ENDING))


def _all_parts(count: int) -> list[Part]:
    return [Part(index, count) for index in range(count)]


def _complete(parts: set[Part]) -> list[Part]:
    """All parts of the smallest number of which none is missing; empty if there is no such number."""
    counts = sorted({part.count for part in parts})
    return next((every for every in map(_all_parts, counts) if parts.issuperset(every)), [])


def _parts_of(path: Path) -> set[Part]:
    match = FILE_NAME.fullmatch(path.name)
    return _stored_parts(path.parent, match["stem"]).get(int(match["step"]), set()) if match else set()


def _stored_parts(folder: Path, stem: str) -> dict[int, set[Part]]:
    """The parts of each step that are in the folder or below; a file that is no part of others is `WHOLE`."""
    parts: dict[int, set[Part]] = {}
    for path in files_below(folder):
        match = FILE_NAME.fullmatch(path.name)
        if match and match["stem"] == stem:
            parts.setdefault(int(match["step"]), set()).add(Part(int(match["index"] or 0), int(match["count"] or 1)))
    return parts


def files_below(folder: Path) -> Iterator[Path]:
    """The files of a folder of rollouts and those in the folders of steps."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir():
            yield from (file for file in sorted(path.iterdir()) if _FOLDER_NAME.fullmatch(path.name))
        else:
            yield path
