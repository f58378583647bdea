"""A finding as JSON (all its fields, and the type by which it is drawn) and as CSV, and its files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.run_directory import atomic_file
from fr3e_jax.studies.analysis.figure import Finding


def finding_fields(finding: Finding) -> dict[str, Any]:
    """The fields of a finding and its ``type``: Figure, HeatMap or TextTable."""
    return {"type": type(finding).__name__} | asdict(finding)


def finding_content(finding: Finding) -> bytes:
    """`finding_fields` as a JSON object; NaN becomes null."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(finding_fields(finding), option=options)


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
