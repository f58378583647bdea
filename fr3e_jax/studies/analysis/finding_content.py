"""A finding as JSON: all its fields, and the type by which it is drawn; and findings read from their files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import orjson

from fr3e_jax.configuration import ConfigError
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
