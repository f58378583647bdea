"""One reader of stored JSON: a type declares its fields, and a fault is one line with file, line and field.

pydantic checks types, ranges and names. This module lies beside the rooms: settings, runs and studies read their files
with it.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from fr3e_jax.json_object import shown

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=2**31)]
"""A step, a position, an index or a length."""
TokenId = Annotated[int, Field(ge=0, lt=2**24)]
"""More than any vocabulary has; an array with an entry for each id stays small."""
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)] | FiniteFloat
STRICT: Any = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""The ``__pydantic_config__`` of a dataclass that is read from JSON with exactly its fields."""
_EXPECTED = "Input should be "


class DamagedRecord(ValueError):
    """Stored JSON that is no record of its kind."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_record(kind: type[T], content: bytes, location: str) -> T:
    """A value of ``kind``, a dataclass, a TypedDict or another annotated type, from JSON.

    Args:
      kind: its fields, types and ranges. Text is no number, and a boolean is none either.
      content: one JSON value.
      location: the file, and the line where it has several, for the message.

    Raises:
      DamagedRecord: with the location, the first field at fault, what was found and what was expected.
    """
    try:
        return _adapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        raise DamagedRecord(f"{location}{_fault(error, content)}") from None


def _fault(error: ValidationError, content: bytes) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return f": found {content[:40]!r}, expected JSON"
    field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).removeprefix(".")
    message = first["msg"].removeprefix("Value error, ")
    if message.startswith(_EXPECTED):
        found = shown(first["input"]) if field else f"a {type(first['input']).__name__}"
        message = f"found {found}, expected {message.removeprefix(_EXPECTED)}"
    return f", field {field}: {message}" if field else f": {message}"
