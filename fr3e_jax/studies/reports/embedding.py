"""Data inside of a page: compressed text that holds no markup."""

from __future__ import annotations

import base64
import gzip
import math
from importlib import resources
from typing import Any

import orjson

_ENCODING = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def embed(data: Any) -> str:
    """The data as JSON, gzipped, in base64: letters, digits, ``+``, ``/`` and ``=`` alone.

    Whatever texts the data holds, the result neither ends its element nor is markup. The page unpacks it with
    ``DecompressionStream("gzip")``. Equal data give equal text. NaN and infinities become null. NumPy arrays
    and numbers are written as lists and numbers.

    Raises:
      TypeError: JSON cannot express the data.
    """
    try:
        content = orjson.dumps(data, option=_ENCODING)
    except TypeError:  # a text may hold a lone surrogate, which UTF-8 has not
        content = orjson.dumps(_without_surrogates(data), option=_ENCODING)
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


def asset(name: str) -> str:
    """The text of a file of ``reports/assets``, such as ``uplot/uPlot.min.css``."""
    return resources.files("fr3e_jax.studies.reports").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def significant(value: Any, digits: int = 7) -> Any:
    """A float with so many significant digits, as many as float32 has; None for NaN and infinities; else the value."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _without_surrogates(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(data, dict):
        return {_without_surrogates(key): _without_surrogates(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_without_surrogates(value) for value in data]
    return data
