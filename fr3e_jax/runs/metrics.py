"""Metrics of a run: one JSON line per record."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from fr3e_jax.json_object import shown
from fr3e_jax.runs.declared_metrics import Kind, check_declared
from fr3e_jax.runs.run_directory import RunDirectory, atomic_file
from fr3e_jax.stored_json import Count, DamagedRecord, Number, read_record

NONFINITE_SUFFIX = "/nonfinite"
TIMING_PREFIXES = ("seconds/", "speed/", "compile/")
TIMING_KEYS = ("cpu_seconds", "wall_seconds")


def without_timing(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without the keys that differ between two identical runs.

    They are ``seconds/…``, ``speed/…``, ``compile/…`` and the run's clocks.
    """
    return {
        key: value for key, value in record.items() if not key.startswith(TIMING_PREFIXES) and key not in TIMING_KEYS
    }


class MetricsWriter:
    """Appends to ``metrics.jsonl``.

    A run that resumes from the checkpoint of step s repeats the steps after s. Their lines are dropped here. A killed
    and resumed run therefore leaves the same file as an uninterrupted one, except for the keys that `without_timing`
    drops. This holds if every record of step s is written before the checkpoint of s is saved.

    Args:
      run_dir: the run's directory.
      resume_step: step of the checkpoint that the run continues from; None: the run starts from the beginning, and
        earlier lines are dropped.
    """

    def __init__(self, run_dir: RunDirectory, *, resume_step: int | None) -> None:
        run_dir.path.mkdir(parents=True, exist_ok=True)
        _truncate_after(run_dir.metrics, -1 if resume_step is None else resume_step)
        self._path = run_dir.metrics

    def write(self, step: int, metrics: Mapping[str, Any], *, kind: str = "train") -> None:
        """Append ``{"step", "kind", **metrics}`` as one line, which is on disk when this returns.

        Values are Python, NumPy or JAX scalars. JSON has no NaN and no infinity: such a value is written as null, and
        its name as text under ``<key>/nonfinite``; ``read_metrics`` undoes this.

        Names that the table of metrics lacks are written as well, for a user may add some; the tests refuse them.

        Raises:
          ValueError: a metric is called step or kind.
          TypeError: a metric is not a number.
          OSError: the disk has no room for the line; the file stays as it was.
          UndeclaredMetric: see `check_declared`.
        """
        numbers = {key: _number(key, value) for key, value in metrics.items()}
        record: dict[str, Any] = {"step": int(step), "kind": kind}
        for key, value in numbers.items():
            if key in ("step", "kind"):
                raise ValueError(f"found a metric named {key!r}; that key is the record's own: rename the metric")
            if math.isfinite(value):
                record[key] = value
            else:
                record |= {key: None, key + NONFINITE_SUFFIX: str(value)}
        check_declared(numbers, kind)
        self._append(json.dumps(record, allow_nan=False).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        """Write the whole line, or leave the file as it was and raise an OSError: a disk may have room for a part.

        The file is synced and closed: a lost host loses no step, and a mounted bucket shows a file when it is closed.
        """
        with open(self._path, "ab", buffering=0) as stream:
            end = stream.tell()
            try:
                while line:
                    line = line[stream.write(line) :]
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(end)
                raise


def _number(key: str, value: Any) -> int | float:
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, int | float):
        raise TypeError(f"metric {key!r} is {value!r} ({type(value).__name__}); expected a scalar number")
    return value


def _complete_lines(path: Path) -> list[bytes]:
    """Lines up to the last line break; a kill during a write leaves an incomplete line after it."""
    if not path.exists():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    return lines


class _Line(BaseModel):
    """A line of ``metrics.jsonl``; its metrics are extra fields."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | None | Literal["nan", "inf", "-inf"]]
    step: Count
    kind: Kind

    @model_validator(mode="after")
    def _check_texts(self) -> _Line:
        """Let texts be the names of non-finite values alone."""
        metrics = self.__pydantic_extra__
        for key, value in metrics.items():
            name = key.removesuffix(NONFINITE_SUFFIX)
            flag = metrics.get(name + NONFINITE_SUFFIX)
            if isinstance(value, str) != (key != name) or (metrics.get(name) is None) != isinstance(flag, str):
                raise ValueError(f"field {name}: found {shown(value)}, expected a number")
        return self


def _parse(line: bytes, location: str) -> dict[str, Any]:
    """The record of a line; NaN and infinities are restored.

    Raises:
      DamagedRecord: it is none.
    """
    record = read_record(_Line, line, location).model_dump()
    for flag in [key for key in record if key.endswith(NONFINITE_SUFFIX)]:
        record[flag.removesuffix(NONFINITE_SUFFIX)] = float(record.pop(flag))
    return record


def _truncate_after(path: Path, step: int) -> None:
    """Drop the records after ``step``. Move lines that are no records into ``metrics.damaged.jsonl``, and name them."""
    good = []
    for line_number, line in enumerate(_complete_lines(path), 1):
        try:
            if _parse(line, "")["step"] <= step:
                good.append(line)
        except DamagedRecord as error:
            damaged = path.with_name("metrics.damaged.jsonl")
            fault = str(error).lstrip(",: ")
            print(f"fr3e: {path}, line {line_number} is damaged; it was moved to {damaged} ({fault})", file=sys.stderr)
            with open(damaged, "ab") as stream:
                stream.write(line + b"\n")
    with atomic_file(path) as stream:
        stream.writelines(line + b"\n" for line in good)


def read_metrics(path: Path, *, kind: str | None = None) -> list[dict[str, Any]]:
    """All records, or those of one ``kind``, in the order of writing; NaN and infinities are restored.

    An incomplete last line is left out.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedRecord: a line is no record; the message has its number and the field.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"found no {path}; expected the metrics.jsonl of a run directory")
    try:
        records = [_parse(line, f"{path}, line {number}") for number, line in enumerate(_complete_lines(path), 1)]
    except DamagedRecord as error:
        raise DamagedRecord(f"{error}; another program changed the file: remove that line") from error
    return [record for record in records if kind is None or record["kind"] == kind]


def recorded_evaluation(path: Path, step: int) -> dict[str, float]:
    """The held-out metrics that a run recorded after this step; empty if it recorded none."""
    records = [record for record in read_metrics(path, kind="eval") if record["step"] == step]
    return {name: value for name, value in records[-1].items() if name not in ("step", "kind")} if records else {}


def recorded_scores(path: Path, name: str) -> dict[int, float]:
    """The finite values of a held-out metric, by step. Damaged lines are passed over, and a missing file is empty."""
    scores = {}
    for line in _complete_lines(path):
        with contextlib.suppress(DamagedRecord):
            record = _parse(line, str(path))
            if record["kind"] == "eval" and math.isfinite(record.get(name, math.nan)):
                scores[record["step"]] = float(record[name])
    return scores
