"""The rules by which one value of a dataset row becomes text: where it is, and what to strip from it."""

from __future__ import annotations

import ast
import functools
import io
import json
import math
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fr3e_jax.rewards.extraction import last_boxed

MISSING = None  # an absent field is treated like a null field
MAX_LITERAL = 1_000_000  # characters of a stringified list
MAX_BITS = 13_000  # of a whole number; Python writes no more than 4300 digits
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]")


class Unusable(ValueError):
    """The value makes no question or answer. ``reason`` is ``empty`` or ``unreadable``."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


@functools.cache
def parse_path(path: str) -> tuple[str | int, ...]:
    """The steps of a path: ``prompt[0].content`` gives ``("prompt", 0, "content")``; raises ValueError for no path."""
    steps, end = [], 0
    for match in _STEP.finditer(path):
        if match.start() != end or (end == 0 and (path.startswith(".") or match[1] is None)):
            break
        steps.append(match[1] if match[1] is not None else int(match[2]))
        end = match.end()
    if not steps or end != len(path):
        raise ValueError(f"{path!r} is not a path to a field; expected names and indices such as prompt[0].content")
    return tuple(steps)


def lookup(row: Any, path: str) -> Any:
    """The value at a dotted path of a row, which may also be a column's name, or None if the row has none."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    for step in parse_path(path):
        if isinstance(step, str):
            row = row.get(step, MISSING) if isinstance(row, Mapping) else MISSING
        else:
            inside = isinstance(row, list | tuple) and -len(row) <= step < len(row)
            row = row[step] if inside else MISSING
        if row is MISSING:
            return MISSING
    return row


@dataclass(frozen=True)
class FieldRule:
    """The steps from a row to a text, applied in this order. By default they only strip white space.

    Attributes:
      path: dotted path of the value, ``prompt[0].content``.
      unwrap_list: the value is a list (or the text of a list, in JSON or Python) of alternatives.
      strip_prefix, strip_suffix: remove known text around the value, such as a baked-in instruction.
      after_last: keep only the text after the last occurrence of this marker (GSM8K's ``"#### "``).
      last_boxed: keep only the content of the last closed ``\\boxed{...}``, see ``fr3e_jax.rewards.extraction``.
      remove: remove every match of this regular expression (GSM8K's ``<<.*?>>``).
      strip: remove white space from both ends.
    """

    path: str
    unwrap_list: bool = False
    strip_prefix: str = ""
    strip_suffix: str = ""
    after_last: str = ""
    last_boxed: bool = False
    remove: str = ""
    strip: bool = True

    def read(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The distinct texts of the value: a single text, or the alternatives of a list.

        Raises:
          Unusable: the value is missing, null or blank, or has not the form that the rule expects.
        """
        value = lookup(row, self.path)
        values = unwrapped(value) if self.unwrap_list else [value]
        texts = [self.extract(text_of(value)) for value in values if value is not MISSING]
        distinct = tuple(dict.fromkeys(text for text in texts if text.strip()))
        if not distinct:
            raise Unusable("empty")
        return distinct

    def extract(self, text: str) -> str:
        """The text after these steps; raises Unusable if it has not the form that they expect."""
        if not text.strip():
            return ""
        text = text.removeprefix(self.strip_prefix).removesuffix(self.strip_suffix)
        if self.after_last:
            _, marker, text = text.rpartition(self.after_last)
            if not marker:
                raise Unusable("unreadable")
        if self.last_boxed:
            text = last_boxed(text) or ""
            if not text:
                raise Unusable("unreadable")
        if self.remove:
            text = re.sub(self.remove, "", text)
        return text.strip() if self.strip else text


def text_of(value: Any) -> str:
    """A text as it is, or a number as people write it (``27.0`` gives ``27``); raises Unusable for anything else."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Unusable("unreadable")
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise Unusable("unreadable")
        return str(value)
    if not math.isfinite(value):
        raise Unusable("unreadable")
    if value == int(value):
        return str(int(value))
    return repr(value) if isinstance(value, float) else f"{value.normalize():f}"


def unwrapped(value: Any) -> list[Any]:
    """The items of a list, or of the text of a list (``"['9.6\\n']"``); any other value is a single item."""
    if isinstance(value, str) and value.lstrip().startswith(("['", '["')):  # but the text [2, 5] is an interval
        try:
            value = json.loads(value[:MAX_LITERAL])
        except (ValueError, RecursionError):
            try:
                value = _python_list(value.strip()[:MAX_LITERAL])
            except (ValueError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError):
                raise Unusable("unreadable") from None
    return list(value) if isinstance(value, list | tuple) else [value]


def _python_list(text: str) -> Any:
    """The value of a text of Python, or of numpy, which writes no commas between texts: Python would join them."""
    parts: list[str] = []
    before = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        parts += [","] * (before == token.type == tokenize.STRING) + [token.string]
        before = before if token.type == tokenize.NL else token.type
    return ast.literal_eval(" ".join(parts).strip())
