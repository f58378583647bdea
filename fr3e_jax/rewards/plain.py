"""Plain Python values as JSON and back: how arguments and results cross from a test to the program under test.

A decoded value consists of the types below, whatever the other side sends: no class of its own, and so no ``__eq__``
that is always true. Subclasses travel as the type that they are built on.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

SMALL = 1 << 63


class NotPlain(TypeError):
    """A value that cannot be sent."""


def dumps(value: Any) -> bytes:
    """JSON of a plain value.

    Raises:
      NotPlain: another type than None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, mapping,
        range, Decimal and Fraction.
      RecursionError: it contains itself, or is nested too deeply.
    """
    return json.dumps(_encoded(value)).encode()


def loads(message: bytes) -> Any:
    """The value; raises ``ValueError``, ``TypeError`` or ``RecursionError`` for other bytes than ``dumps`` makes."""
    return _decoded(json.loads(message))


def _encoded(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -SMALL < value < SMALL else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [_encoded(item) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_encoded(key), _encoded(item)] for key, item in value.items()]}
    return _encoded_atom(value)


def _encoded_atom(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [_encoded(value.start), _encoded(value.stop), _encoded(value.step)]}
    if _is_of("decimal", "Decimal", value):
        return {"decimal": str(value)}
    if _is_of("fractions", "Fraction", value):
        return {"fraction": [_encoded(value.numerator), _encoded(value.denominator)]}
    raise NotPlain(f"a {type(value).__name__} cannot be passed between a test and the program under test")


def _is_of(module: str, name: str, value: Any) -> bool:
    """Return whether a value is of a type, without importing its module; values exist only after the import."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError("not a plain value")
    ((name, content),) = value.items()
    if name in _SEQUENCES:
        return _SEQUENCES[name](_items(content))
    if name == "dict":
        return {_decoded(key): _decoded(item) for key, item in content}
    if name not in _ATOMS:
        raise ValueError("not a plain value")
    return _ATOMS[name](content)


def _items(content: Any) -> Iterable[Any]:
    if not isinstance(content, list):
        raise ValueError("not a plain value")
    return [_decoded(item) for item in content]


_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}
_ATOMS = {
    "int": lambda content: int(content, 16),
    "bytes": bytes.fromhex,
    "complex": lambda content: complex(*content),
    "decimal": lambda content: importlib.import_module("decimal").Decimal(content),
    "fraction": lambda content: importlib.import_module("fractions").Fraction(*_items(content)),
    "range": lambda content: range(*_items(content)),
}
