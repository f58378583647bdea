"""Rollouts on disk: gzipped JSON lines of each step, with all data that later analysis needs.

A process on its own writes one file a step. Of several, each writes a part (`fr3e_jax.runs.rollout_parts`).
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from isal import igzip_threaded

from fr3e_jax.runs.rollout_parts import (
    FILE_NAME,
    WHOLE,
    Part,
    drop_other_parts,
    missing_parts,
    rollout_files,
    rollout_path,
)
from fr3e_jax.runs.run_directory import RunDirectory, atomic_file


@dataclass
class RolloutRecord:
    """One sampled continuation: a base rollout, a rollout from a state of a base rollout, or one of an evaluation.

    The full response of an explored rollout is its parent's ``token_ids[:fork]`` followed by its own ``token_ids``.
    Floats are stored as float32 in their shortest form. Non-finite floats are stored as null and read back as NaN.
    Arrays in place of lists are stored as lists.
    """

    id: str
    """Unique within the run."""
    step: int
    """Training step that sampled it."""
    kind: Literal["base", "state", "eval"]
    prompt_position: int
    """Position of the prompt in the run's stream of prompts; for evaluations, in the held-out set."""
    problem_id: str
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    """The new tokens alone, with the stop token."""
    logprobs: Sequence[float]
    """Log-prob of each new token under the distribution that it was sampled from."""
    entropies: Sequence[float]
    """Entropy of the full vocabulary at each new token, in nats."""
    reward: float
    finished: bool
    """True if a stop token ended it, False if the length cap did."""
    base: int
    """Index of the base rollout within its prompt; for kind "state", of the parent. Of an evaluation: 0 is the greedy
    answer, m the m-th sample."""
    outcome: str | None = None
    """Reason of the reward (``fr3e_jax.verdict.Outcome``); None if the rollout was not graded."""
    state: int | None = None
    """Index j of the state S_j that it starts from; None for base rollouts."""
    branch: int | None = None
    """Index m among the rollouts of its state; None for base rollouts."""
    parent: str | None = None
    """``id`` of the base rollout that it branches from; None for base rollouts."""
    fork: int = 0
    """Tokens of the parent's response before the branch."""
    anchors: list[int] = field(default_factory=list)
    """Anchor positions in the response of an expanded base rollout, 0-based."""
    kept: bool = True
    """False if its group was rejected and trains nothing."""
    advantage: float | None = None
    """Advantage after modulation; None if the rollout was not trained."""
    answers: list[list[int]] = field(default_factory=list)
    """[start, end) of each tool answer or observation in the new tokens; its tokens carry no loss."""
    turns: list[list[float]] = field(default_factory=list)
    """[end, reward] of each turn in an environment that ends in the new tokens."""
    value: float | None = None
    """V of the state that it starts from."""
    alpha: float | None = None
    """Modulation of the state that it starts from."""
    benchmark: str = ""
    """Of an evaluation: the name of its set."""
    prompt: str = ""
    """Text of ``prompt_ids``: the question in its template."""
    prefix: str = ""
    """Of a rollout from a state: text of the base's tokens before the fork."""
    response: str = ""
    """Text of the new tokens without the stop token."""
    gold: str = ""
    """The gold answer."""

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in ("token_ids", "logprobs", "entropies")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"rollout {self.id}: found lengths {lengths}, expected one number per new token in each")


_FIELDS = tuple(entry.name for entry in fields(RolloutRecord))
_NEEDED = {entry.name for entry in fields(RolloutRecord) if entry.default is entry.default_factory is MISSING}
FLOAT_LISTS = ("logprobs", "entropies")
FLOATS = ("reward", "advantage", "value", "alpha")
_BUFFER_BYTES = 2**20
_MOST_THREADS = 8
_LEVEL = 2  # of ISA-L: a tenth of the time of zlib's level 6, 8 % more bytes
_ENCODING = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def _encode(record: RolloutRecord) -> bytes:
    """A line of JSON. orjson writes float32 in its shortest form, and non-finite numbers as null."""
    content = {name: getattr(record, name) for name in _FIELDS}
    for name in FLOAT_LISTS:
        content[name] = np.ascontiguousarray(content[name], np.float32)
    for name in FLOATS:
        if content[name] is not None:
            content[name] = np.float32(content[name])
    return orjson.dumps(content, option=_ENCODING)


def _decode(content: dict[str, Any]) -> RolloutRecord:
    for name in FLOAT_LISTS:
        content[name] = [math.nan if value is None else value for value in content[name]]
    if content["reward"] is None:
        content["reward"] = math.nan
    return RolloutRecord(**content)


def is_whole(path: Path) -> bool:
    """Return whether the rollouts of ``path``, or of all its parts, are there and can be decompressed to their end."""
    files = rollout_files(path)
    try:
        for file in files:
            with gzip.open(file) as stream:
                while stream.read(_BUFFER_BYTES):
                    pass
    except (OSError, EOFError, zlib.error):
        return False
    return bool(files)


def write_rollouts(
    run_dir: RunDirectory, step: int, records: Iterable[RolloutRecord], *, stem: str = "step", part: Part = WHOLE
) -> Path:
    """Write ``rollouts/<stem>_<step>.jsonl.gz`` whole or not at all, over a file of that name; return its path.

    Equal records give equal bytes, on one kind of processor. ISA-L compresses in threads and lets other threads of
    Python run meanwhile. Evaluations of a step go into a file with another stem. The ``records`` of one ``part`` go
    into ``<stem>_<step>.<index>-of-<count>.jsonl.gz``. The first part removes what another number of processes left.

    Raises:
      ValueError: a record belongs to another step.
    """
    file = rollout_path(run_dir, step, stem=stem)
    path, threads = part.path(file), min(_MOST_THREADS, os.cpu_count() or 1)
    with atomic_file(path) as stream, igzip_threaded.open(stream, "wb", _LEVEL, threads=threads) as lines:
        for record in records:
            if record.step != step:
                raise ValueError(f"rollout {record.id} has step {record.step}, expected {step} (file {path.name})")
            lines.write(_encode(record))
    if part.index == 0:
        drop_other_parts(file, part.count)
    return path


def iterate_rollouts(path: Path) -> Iterator[RolloutRecord]:
    """The records of one file or of all its parts, one after the other, in the order of writing.

    A file of an earlier version may lack fields that have a default.

    Raises:
      FileNotFoundError: there is no such file, or a part is missing.
      ValueError: the file is damaged, or another version wrote it.
    """
    files = rollout_files(path)
    if not files:
        raise FileNotFoundError(missing_parts(path))
    for file in files:
        yield from _records_of(file)


def _records_of(path: Path) -> Iterator[RolloutRecord]:
    try:
        with gzip.open(path, "rb") as stream:
            for line_number, line in enumerate(stream, 1):
                content = orjson.loads(line)
                names = set(content) if isinstance(content, dict) else set()
                if not _NEEDED <= names <= set(_FIELDS):
                    differing = sorted((_NEEDED - names) | (names - set(_FIELDS)))
                    raise ValueError(f"line {line_number} lacks or adds the fields {differing}")
                yield _decode(content)
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError, TypeError) as error:
        raise ValueError(
            f"{path}: {error}; expected gzipped JSON lines written by this version's write_rollouts: "
            "remove the file, or read it with the version that wrote it"
        ) from error


def read_rollouts(path: Path) -> list[RolloutRecord]:
    """All records of one file or of its parts, see `iterate_rollouts`."""
    return list(iterate_rollouts(path))


def drop_after(run_dir: RunDirectory, step: int | None) -> list[Path]:
    """Remove the files of steps after ``step`` (None: all) and of interrupted writes; return their paths.

    A run that resumes from the checkpoint of ``step`` samples the later steps again.
    """
    removed = []
    for path in sorted(run_dir.rollouts.glob("*")) if run_dir.rollouts.is_dir() else []:
        interrupted = path.name.endswith(".tmp")
        match = FILE_NAME.fullmatch(path.name.removeprefix(".").removesuffix(".tmp"))
        if match and (interrupted or step is None or int(match["step"]) > step):
            path.unlink()
            removed.append(path)
    return removed
