"""A finding as JSON: all its fields, and the type by which it is drawn."""

from __future__ import annotations

from dataclasses import asdict

import orjson

from fr3e_jax.analysis.figure import Finding


def finding_content(finding: Finding) -> bytes:
    """A JSON object with the fields of the finding and its ``type``: Figure, HeatMap or TextTable; NaN becomes null."""
    content = {"type": type(finding).__name__} | asdict(finding)
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
