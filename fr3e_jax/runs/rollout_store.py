"""Rollouts on disk: gzipped JSON lines of each step, with all data that later analysis needs.

A process on its own writes one file a step. Of several, each writes a part (`fr3e_jax.runs.rollout_parts`).
"""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal, cast

import numpy as np
import orjson
from isal import igzip
from pydantic import AfterValidator, Field, GetPydanticSchema

from fr3e_jax.json_object import shown
from fr3e_jax.runs.rollout_parts import (
    FILE_NAME,
    WHOLE,
    Part,
    drop_other_parts,
    files_below,
    missing_parts,
    remove_if_empty,
    rollout_files,
    rollout_path,
)
from fr3e_jax.runs.run_directory import RunDirectory, atomic_file
from fr3e_jax.stored_json import STRICT, Count, DamagedRecord, TokenId, read_record
from fr3e_jax.verdict import Outcome


def _nan_for_null(value: float | None) -> float:
    return math.nan if value is None else value


def _nan_for_nulls(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


Float = Annotated[float, Field(ge=-3.5e38, le=3.5e38)]
"""A number that float32 holds."""
NullableFloat = GetPydanticSchema(lambda _, schema_of: schema_of(Float | None))
NullableFloats = GetPydanticSchema(lambda _, schema_of: schema_of(list[Float | None]))


@dataclass
class RolloutRecord:
    """One sampled continuation: a base rollout, a rollout from a state of a base rollout, or one of an evaluation.

    The full response of an explored rollout is its parent's ``token_ids[:fork]`` followed by its own ``token_ids``.
    Floats are stored as float32 in their shortest form. Non-finite floats are stored as null and read back as NaN.
    Arrays in place of lists are stored as lists.
    """

    id: str
    """Unique within the run."""
    step: Count
    """Training step that sampled it."""
    kind: Literal["base", "state", "eval"]
    prompt_position: Count
    """Position of the prompt in the run's stream of prompts; for evaluations, in the held-out set."""
    problem_id: str
    prompt_ids: Sequence[TokenId]
    token_ids: Sequence[TokenId]
    """The new tokens alone, with the stop token."""
    logprobs: Annotated[Sequence[float], NullableFloats, AfterValidator(_nan_for_nulls)]
    """Log-prob of each new token under the distribution that it was sampled from."""
    entropies: Annotated[Sequence[float], NullableFloats, AfterValidator(_nan_for_nulls)]
    """Entropy of the full vocabulary at each new token, in nats."""
    reward: Annotated[float, NullableFloat, AfterValidator(_nan_for_null)]
    finished: bool
    """True if a stop token ended it, False if the length cap did."""
    base: Count
    """Index of the base rollout within its prompt; for kind "state", of the parent. Of an evaluation: 0 is the greedy
    answer, m the m-th sample."""
    outcome: Outcome | None = None
    """Reason of the reward (``fr3e_jax.verdict.Outcome``); None if the rollout was not graded."""
    state: Count | None = None
    """Index j of the state S_j that it starts from; None for base rollouts."""
    branch: Count | None = None
    """Index m among the rollouts of its state; None for base rollouts."""
    parent: str | None = None
    """``id`` of the base rollout that it branches from; None for base rollouts."""
    fork: Count = 0
    """Tokens of the parent's response before the branch."""
    anchors: list[Count] = field(default_factory=list)
    """Anchor positions in the response of an expanded base rollout, 0-based."""
    kept: bool = True
    """False if its group was rejected and trains nothing."""
    advantage: Float | None = None
    """Advantage after modulation; None if the rollout was not trained. It is the one before the update, which may make
    another from values (GAE), the batch, a divergence in the reward or a teacher."""
    answers: list[list[Count]] = field(default_factory=list)
    """[start, end) of each tool answer or observation in the new tokens; its tokens carry no loss."""
    turns: list[list[Float]] = field(default_factory=list)
    """[end, reward] of each turn in an environment that ends in the new tokens."""
    value: Float | None = None
    """V of the state that it starts from."""
    alpha: Float | None = None
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

    __pydantic_config__ = STRICT

    @property
    def state_id(self) -> str:
        """The id of the state that it starts from: explored states and those of a visit have the same numbers."""
        return self.id.rpartition("/")[0]


def _faults(
    record: RolloutRecord, file: re.Match[str], lengths: Mapping[str, int], parents: Mapping[str, str | None]
) -> Iterator[str]:
    """The fields that contradict others, or the lines before.

    Args:
      record: a record whose fields have their types.
      file: its file's name, a match of `FILE_NAME`.
      lengths: the number of new tokens of each rollout in the lines before, by id.
      parents: the parent of each of them, by id.
    """
    length, branched = len(record.token_ids), record.kind == "state"
    parent_length = lengths.get(record.parent or "", record.fork) if branched else 0
    rules = {
        "step": (record.step == int(file["step"]), "the step of the file"),
        "kind": ((record.kind == "eval") == (file["stem"] == "eval"), "eval in files of evaluations alone"),
        "id": (record.id not in lengths, "an id that no line before has"),
        "parent": (branched or record.parent is None, "null where the kind is not state"),
        "state": (branched or record.state is None, "null where the kind is not state"),
        "branch": (branched or record.branch is None, "null where the kind is not state"),
        "fork": (record.fork <= parent_length, f"at most the parent's length, {parent_length}"),
        "anchors": (all(anchor <= length for anchor in record.anchors), f"positions in {length} new tokens"),
        "answers": (all(_is_span(*span, end=length) for span in record.answers), f"[start, end) in {length} tokens"),
        "turns": (all(_is_turn(*turn, end=length) for turn in record.turns), f"[end, reward], in {length} tokens"),
    }
    for name, (holds, expected) in rules.items():
        if not holds:
            yield f"{name}: found {shown(getattr(record, name))}, expected {expected}"
    ancestor = record.parent
    while ancestor is not None and ancestor != record.id:
        ancestor = parents.get(ancestor)
    if ancestor is not None:
        yield f"parent: found {shown(record.parent)}, which descends from this rollout"


def _is_span(*span: int, end: int) -> bool:
    return len(span) == 2 and span[0] <= span[1] <= end


def _is_turn(*turn: float, end: int) -> bool:
    return len(turn) == 2 and turn[0].is_integer() and 0 <= turn[0] <= end


_FIELDS = tuple(entry.name for entry in fields(RolloutRecord))
_ADVICE = "expected gzipped JSON lines of this version: remove the file, or read it with the version that wrote it"
FLOAT_LISTS = ("logprobs", "entropies")
FLOATS = ("reward", "advantage", "value", "alpha")
_BUFFER_BYTES = 2**20
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

    Equal records give equal bytes, on one kind of processor. Evaluations of a step go into a file with another stem.
    The ``records`` of one ``part`` go into ``<stem>_<step>/<stem>_<step>.<index>-of-<count>.jsonl.gz``. The first part
    removes what another number of processes left.

    Raises:
      ValueError: a record belongs to another step.
    """
    file = rollout_path(run_dir, step, stem=stem)
    path = part.path(file)
    with (
        atomic_file(path) as stream,
        io.BufferedWriter(igzip.IGzipFile("", "wb", _LEVEL, stream, mtime=0), _BUFFER_BYTES) as lines,
    ):
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
      DamagedRecord: the file is damaged, or another version wrote it; the message names line and field.
    """
    files = rollout_files(path)
    if not files:
        raise FileNotFoundError(missing_parts(path))
    lengths: dict[str, int] = {}
    parents: dict[str, str | None] = {}
    for file in files:
        name = cast(re.Match[str], FILE_NAME.fullmatch(file.name))
        for location, record in _records_of(file):
            if fault := next(_faults(record, name, lengths, parents), None):
                raise DamagedRecord(f"{location}, field {fault}; {_ADVICE}")
            lengths[record.id] = len(record.token_ids)
            parents[record.id] = record.parent
            yield record


def _records_of(path: Path) -> Iterator[tuple[str, RolloutRecord]]:
    """Each record of a file, and its place."""
    try:
        with gzip.open(path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                location = f"{path}, line {number}"
                yield location, read_record(RolloutRecord, line, location)
    except DamagedRecord as error:
        raise DamagedRecord(f"{error}; {_ADVICE}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedRecord(f"{path}: {error}; {_ADVICE}") from error


def read_rollouts(path: Path) -> list[RolloutRecord]:
    """All records of one file or of its parts, see `iterate_rollouts`."""
    return list(iterate_rollouts(path))


def drop_after(run_dir: RunDirectory, step: int | None) -> list[Path]:
    """Remove the files of steps after ``step`` (None: all) and of interrupted writes; return their paths.

    Folders that are empty then go, too.

    A run that resumes from the checkpoint of ``step`` samples the later steps again.
    """
    removed = []
    for path in list(files_below(run_dir.rollouts)):
        interrupted = path.name.endswith(".tmp")
        match = FILE_NAME.fullmatch(path.name.removeprefix(".").removesuffix(".tmp"))
        if match and (interrupted or step is None or int(match["step"]) > step):
            path.unlink()
            removed.append(path)
            if path.parent != run_dir.rollouts:
                remove_if_empty(path.parent)
    return removed
