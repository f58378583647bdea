"""A finding as JSON (all its fields, and the type by which it is drawn) and as CSV, and its files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import orjson
from typing_extensions import TypedDict

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.run_directory import atomic_file
from fr3e_jax.stored_json import DamagedRecord, read_record
from fr3e_jax.studies.analysis.figure import Figure, Finding, HeatMap, TextTable


class _Typed(TypedDict):
    type: Literal["Figure", "HeatMap", "TextTable"]


_TYPES = {kind.__name__: kind for kind in (Figure, HeatMap, TextTable)}


def finding_fields(finding: Finding) -> dict[str, Any]:
    """The fields of a finding and its ``type``: Figure, HeatMap or TextTable."""
    return {"type": type(finding).__name__} | asdict(finding)


def finding_content(finding: Finding) -> bytes:
    """`finding_fields` as a JSON object; NaN becomes null."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(finding_fields(finding), option=options)


def stored_findings(folder: Path) -> Iterator[Finding]:
    """The findings whose files lie in ``folder``, by name; none if there is no such folder.

    Raises:
      ConfigError: a file is no finding.
    """
    for path in sorted(folder.glob("*.json")):
        try:
            content = path.read_bytes()
            kind = _TYPES[read_record(_Typed, content, str(path))["type"]]
            yield read_record(kind, content, str(path))
        except (OSError, DamagedRecord) as error:
            raise ConfigError(
                f"{path} is no finding of an analysis ({error}); delete it, or repeat the command that wrote it"
            ) from error


def write_findings(findings: Sequence[Finding], folder: Path) -> None:
    """Write ``NAME.json`` and ``NAME.csv`` of each finding; a file is whole or not there.

    Raises:
      ConfigError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for finding in findings:
            with atomic_file(folder / f"{finding.name}.json") as stream:
                stream.write(finding_content(finding))
            with atomic_file(folder / f"{finding.name}.csv") as stream:
                stream.write(as_csv(finding).encode())
    except OSError as error:
        raise ConfigError(f"cannot write into {folder} ({error}); choose another folder: --out DIR") from error


def as_csv(finding: Finding) -> str:
    """The rows of a finding under their names; an empty cell where there is no value."""
    rows, text = list(finding.rows()), io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
