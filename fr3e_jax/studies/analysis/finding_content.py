"""A finding as JSON (all its fields, and the type by which it is drawn) and as CSV, and its files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import orjson

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.run_directory import atomic_file
from fr3e_jax.studies.analysis.figure import Figure, Finding, Series


def finding_content(finding: Finding) -> bytes:
    """A JSON object with the fields of the finding and its ``type``: Figure, HeatMap or TextTable; NaN becomes null."""
    content = {"type": type(finding).__name__} | asdict(finding)
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def stored_findings(folder: Path) -> Iterator[Finding]:
    """The findings whose files lie in ``folder``, by name; none if there is no such folder.

    Raises:
      ConfigError: a file is no finding.
    """
    for path in sorted(folder.glob("*.json")):
        try:
            content = orjson.loads(path.read_bytes())
            kind = {one.__name__: one for one in get_args(Finding)}[content.pop("type")]
            if kind is Figure:
                content["series"] = [Series(**one) for one in content["series"]]
            yield kind(**content)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise ConfigError(
                f"{path} is no finding of an analysis ({error}); delete it, or repeat the command that wrote it"
            ) from error


def write_findings(found: Sequence[Finding], folder: Path) -> None:
    """Write ``NAME.json`` and ``NAME.csv`` of each finding; a file is whole or not there.

    Raises:
      OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for one in found:
        with atomic_file(folder / f"{one.name}.json") as stream:
            stream.write(finding_content(one))
        with atomic_file(folder / f"{one.name}.csv") as stream:
            stream.write(as_csv(one).encode())


def as_csv(finding: Finding) -> str:
    """The rows of a finding under their names; an empty cell where there is no value."""
    rows, text = list(finding.rows()), io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
