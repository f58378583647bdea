"""Nested values with large arrays in one file: JSON that names their places among the raw bytes that follow it.

Objects and arrays that occur twice come back as one. Only classes that the reader names are made, so a file cannot run
code. Arrays on devices stay out of the file: the writer lists them, and the reader hands them in.

    8 bytes    length of the JSON text, little-endian
    JSON       {"value": ..., "device": descriptions of the arrays on devices}
    bytes      the arrays, one after another
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fr3e_jax.runs.run_directory import atomic_file

_LENGTH = 8
_CONTAINERS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}

Derived = Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], Any]]]
"""Class -> field -> the function that finds its value from the other fields; such fields are not written."""


class UnreadableValues(ValueError):
    """The file is damaged, or another version wrote it."""


class Packer:
    """Turns values into JSON content, and collects their arrays.

    Args:
      classes: the dataclasses that may occur.
      on_device: the types whose objects stay on the devices; ``device`` lists those that were found.
      derived: fields that are left out.
    """

    def __init__(self, classes: Sequence[type], on_device: tuple[type, ...] = (), derived: Derived | None = None):
        self.device: list[Any] = []
        self._names, self._on_device, self._derived = {one: one.__name__ for one in classes}, on_device, derived or {}
        self._numbers: dict[int, int] = {}  # of objects, by id
        self._kept: list[Any] = []  # so that no id is used twice
        self._arrays: list[np.ndarray] = []
        self._places: dict[int, dict[str, Any]] = {}  # of arrays, by id
        self._size = 0

    def content(self, value: Any) -> Any:
        """JSON content for ``value``.

        Raises:
          TypeError: a value of another type.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) is list:
            return [self.content(entry) for entry in value]
        if isinstance(value, self._on_device):
            return {"device": self._number(value, self.device)}
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value))}
        if isinstance(value, Counter):
            return {"counter": self._pairs(value)}
        if isinstance(value, dict):
            return {"dict": self._pairs(value)}
        if type(value) in self._names:
            return self._object(value)
        for name, kind in _CONTAINERS.items():
            if type(value) is kind:
                return {name: [self.content(entry) for entry in (sorted(value) if isinstance(value, set) else value)]}
        if hasattr(value, "__array__"):  # a result of jax that nobody has fetched
            return self._array(np.asarray(value))
        raise TypeError(f"{value!r:.80} ({type(value).__name__}) cannot be written; expected one of the named classes")

    def _pairs(self, value: Mapping[Any, Any]) -> list[list[Any]]:
        return [[self.content(key), self.content(entry)] for key, entry in value.items()]

    def _number(self, value: Any, found: list[Any]) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(found)
            found.append(value)
        return self._numbers[id(value)]

    def _array(self, value: np.ndarray) -> dict[str, Any]:
        if id(value) not in self._places:
            array = np.ascontiguousarray(value)
            self._arrays.append(array)
            self._kept.append(value)
            place, self._size = self._size, self._size + array.nbytes
            self._places[id(value)] = {"array": [place, array.dtype.newbyteorder("<").str, list(value.shape)]}
        return self._places[id(value)]

    def _object(self, value: Any) -> dict[str, Any]:
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        number = self._number(value, self._kept)
        left_out = self._derived.get(type(value).__name__, {})
        names = [entry.name for entry in fields(value) if entry.name not in left_out]
        own = {name: self.content(getattr(value, name)) for name in names}
        return {"class": self._names[type(value)], "number": number, "fields": own}

    def write(self, path: Path, content: Any, device: list[Any]) -> None:
        """Write ``content`` whole or not at all; ``device``: JSON that describes the arrays on devices."""
        head = json.dumps({"value": content, "device": device}).encode()
        hashed = hashlib.sha256()
        with atomic_file(path) as stream:
            for part in itertools.chain([len(head).to_bytes(_LENGTH, "little"), head], map(_bytes, self._arrays)):
                hashed.update(part)
                stream.write(part)
            stream.write(hashed.digest())


def _bytes(array: np.ndarray) -> bytes | memoryview:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return little.reshape(-1).view(np.uint8).data


class Unpacker:
    """Reads a file of `Packer`; ``device`` has the descriptions of the arrays on devices.

    Raises:
      UnreadableValues: the file is not as it was written.
    """

    def __init__(self, path: Path, classes: Sequence[type], derived: Derived | None = None):
        assert all(is_dataclass(one) for one in classes)
        self._path, self._classes, self._derived = path, {one.__name__: one for one in classes}, derived or {}
        try:
            whole = path.read_bytes()
        except OSError as error:
            raise UnreadableValues(f"{path} cannot be read: {error}") from error
        body, digest = memoryview(whole)[:-32], whole[-32:]
        if hashlib.sha256(body).digest() != digest:
            raise UnreadableValues(f"{path} is damaged: its checksum is wrong")
        start = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
        head = json.loads(bytes(body[_LENGTH:start]))
        self.device, self._content, self._bytes = head["device"], head["value"], body[start:]
        self._objects: dict[int, Any] = {}
        self._arrays: dict[tuple, np.ndarray] = {}  # by place, type and shape

    def value(self, device: Sequence[Any] = ()) -> Any:
        """The value; ``device``: the objects that `device` describes.

        Raises:
          UnreadableValues: another version wrote the file.
        """
        self._held = device
        try:
            return self._value(self._content)
        except (KeyError, TypeError) as error:
            raise UnreadableValues(f"{self._path} was written by another version: {error!r}") from error

    def _value(self, content: Any) -> Any:
        if isinstance(content, list):
            return [self._value(entry) for entry in content]
        if not isinstance(content, dict):
            return content
        if "class" in content:
            return self._object(content)
        ((kind, inner),) = content.items()
        match kind:
            case "float":
                return float(inner)
            case "device":
                return self._held[inner]
            case "array":
                return self._array(*inner)
            case "scalar":
                return self._array(*inner["array"])[()]
            case "dict" | "counter":
                pairs = {self._value(key): self._value(entry) for key, entry in inner}
                return Counter(pairs) if kind == "counter" else pairs
            case "again":
                return self._objects[inner]
        return _CONTAINERS[kind](map(self._value, inner))

    def _array(self, place: int, kind: str, shape: list[int]) -> np.ndarray:
        dtype, key = np.dtype(kind), (place, kind, *shape)
        if not (count := math.prod(shape)):
            return np.zeros(shape, dtype.newbyteorder("="))
        if key not in self._arrays:
            found = np.frombuffer(self._bytes, dtype, count, place)
            self._arrays[key] = found.astype(dtype.newbyteorder("=")).reshape(shape)
        return self._arrays[key]

    def _object(self, content: Mapping[str, Any]) -> Any:
        kind = self._classes[content["class"]]
        made: Any = object.__new__(kind)
        self._objects[content["number"]] = made
        own = {name: self._value(entry) for name, entry in content["fields"].items()}
        own |= {name: find(own) for name, find in self._derived.get(kind.__name__, {}).items()}
        if own.keys() != {entry.name for entry in fields(kind)}:
            raise KeyError(f"the fields of {kind.__name__}")
        for name, entry in own.items():
            object.__setattr__(made, name, entry)
        return made
