"""The parts of a stored file of rollouts: each process of a run writes its own, and readers join them in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fr3e_jax.runs.run_directory import RunDirectory

FILE_NAME = re.compile(
    r"\.?(?P<stem>[a-z]+)_(?P<step>\d{6,})(\.(?P<index>\d+)-of-(?P<count>[1-9]\d*))?\.jsonl\.gz(\.tmp)?"
)
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
        """``step_000012.0-of-4.jsonl.gz`` beside ``step_000012.jsonl.gz``; the file itself if there is one part."""
        if self.count == 1:
            return file
        return file.with_name(f"{file.name.removesuffix(_ENDING)}.{self.index}-of-{self.count}{_ENDING}")


WHOLE = Part()


def rollout_path(run_dir: RunDirectory, step: int, *, stem: str = "step") -> Path:
    """The file of a step's rollouts. Several processes write parts beside it; `rollout_files` lists what is there."""
    return run_dir.rollouts / f"{stem}_{step:06d}{_ENDING}"


def rollout_files(path: Path) -> list[Path]:
    """The files that hold the records of ``path``, in order: itself, or all its parts; empty if some are missing."""
    if path.is_file():
        return [path]
    present = _parts_beside(path)
    for count in sorted({shard.count for shard in present}):
        shards = [Part(index, count) for index in range(count)]
        if all(shard in present for shard in shards):
            return [shard.path(path) for shard in shards]
    return []


def missing_parts(path: Path) -> str:
    """A message about the files that stand in place of ``path`` and all its parts."""
    present = sorted(_parts_beside(path), key=lambda shard: (shard.count, shard.index))
    if not present:
        return f"{path} is not there, and no part of it either"
    count = present[0].count
    lacking = [n for n in range(count) if Part(n, count) not in present]
    return f"{path} is in {count} parts, and {', '.join(Part(n, count).path(path).name for n in lacking)} is missing"


def stored_bytes(path: Path) -> int:
    """Size on disk of the records of ``path``, whether in one file or in parts; 0 if they are not all there."""
    return sum(file.stat().st_size for file in rollout_files(path))


def stored_steps(run_dir: RunDirectory, stem: str = "step") -> list[int]:
    """The steps whose rollouts are all there, in order; those of a step that is being written are not."""
    folder = run_dir.rollouts
    names = [FILE_NAME.fullmatch(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    present: dict[int, set[Part]] = {}
    for match in names:
        if match and match["stem"] == stem and match[0].startswith(stem) and match[0].endswith(_ENDING):
            present.setdefault(int(match["step"]), set()).add(_part(match))
    return sorted(step for step, parts in present.items() if any(_all_there(parts, shard.count) for shard in parts))


def drop_other_parts(path: Path, count: int) -> None:
    """Remove what another number of processes wrote in place of ``path``: the file itself, or its other parts."""
    for shard in _parts_beside(path):
        if shard.count != count:
            shard.path(path).unlink(missing_ok=True)
    if count > 1:
        path.unlink(missing_ok=True)


def _all_there(parts: set[Part], count: int) -> bool:
    return all(Part(index, count) in parts for index in range(count))


def _part(match: re.Match[str]) -> Part:
    return WHOLE if match["count"] is None else Part(int(match["index"]), int(match["count"]))


def _parts_beside(path: Path) -> set[Part]:
    """The parts of ``path`` in its folder; the whole file is none."""
    name = re.compile(re.escape(path.name.removesuffix(_ENDING)) + r"\.(\d+)-of-([1-9]\d*)" + re.escape(_ENDING))
    files = path.parent.iterdir() if path.parent.is_dir() else ()
    return {Part(int(match[1]), int(match[2])) for file in files if (match := name.fullmatch(file.name))}
