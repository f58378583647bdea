"""Fingerprints of what a program closes over: equal in every process where the function, as code and data, is equal.

A function counts by its name, its byte code, and all that it holds: bound arguments, closure, defaults. What it calls
by global names does not show in these. So only functions of modules whose sources are known otherwise have a
fingerprint: those of `CODE`, which whoever uses a fingerprint must hash as files, and those of libraries, which have
versions. Anything else raises `Unidentified`: better no fingerprint than one that two programs could share.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

CODE = ("fr3e_jax.objectives", "fr3e_jax.policy", "fr3e_jax.programs")
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes", "functools", "builtins", "operator", "_operator")


class Unidentified(Exception):
    """Something whose meaning in another process is not known."""


def fingerprint(value: Any) -> str:
    """Hexadecimal digits, of 256 bits.

    Raises:
      Unidentified: ``value`` holds something of an unknown kind, a function from elsewhere, or itself.
    """
    return _Walk().digest(value).hex()


class _Walk:
    """Digests of values, each computed once; equal values have equal digests, whether they are one object or two."""

    def __init__(self):
        self._known: dict[int, tuple[Any, bytes]] = {}  # by id; the value is kept, so that no other gets its id
        self._open: set[int] = set()

    def digest(self, value: Any) -> bytes:
        kind = type(value)
        parts = [f"{kind.__module__}.{kind.__qualname__}".encode()]
        if value is None or value is ... or isinstance(value, bool | int | float | complex | str | bytes):
            return _hash([*parts, repr(value).encode("utf-8", "surrogatepass")])
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            raise Unidentified(f"{kind.__qualname__} that holds itself")
        self._open.add(id(value))
        found = _hash(parts + [x if isinstance(x, bytes) else self.digest(x.value) for x in _content(value)])
        self._open.remove(id(value))
        self._known[id(value)] = value, found
        return found


def _hash(parts: list[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()


class _Within(NamedTuple):
    """A value that another one holds."""

    value: Any


def _all(*values: Any) -> Iterator[bytes | _Within]:
    yield b"%d" % len(values)
    yield from map(_Within, values)


def _content(value: Any) -> Iterator[bytes | _Within]:
    """What ``value`` holds beside its type."""
    if isinstance(value, np.ndarray | np.generic):
        yield repr((value.shape, value.dtype.str, value.dtype.name)).encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, np.dtype):
        yield value.name.encode()
    elif isinstance(value, jax.tree_util.PyTreeDef):
        yield str(value).encode()
    elif isinstance(value, enum.Enum):
        yield value.name.encode()
    elif isinstance(value, Mapping):
        yield from _all(*(part for item in value.items() for part in item))
    elif isinstance(value, set | frozenset):
        yield from _all(*sorted(map(fingerprint, value)))
    elif isinstance(value, tuple | list | PartitionSpec):
        yield from _all(*value)
    elif isinstance(value, type):
        yield _name(value)
    elif isinstance(value, Mesh):
        yield from _all(value.axis_names, value.devices.shape, str(value.axis_types), *value.devices.flat)
    elif isinstance(value, NamedSharding):
        yield from _all(value.mesh, value.spec, value.memory_kind)
    elif isinstance(value, SingleDeviceSharding):
        yield from _all(*value.device_set, value.memory_kind)
    elif isinstance(value, jax.Device):
        yield f"{value.platform} {value.device_kind} {value.id} {value.process_index}".encode()
    elif isinstance(value, jax.ShapeDtypeStruct):
        yield from _all(value.shape, value.dtype, value.weak_type, value.sharding)
    elif dataclasses.is_dataclass(value):
        yield _name(type(value))
        yield from _all(*(getattr(value, field.name) for field in dataclasses.fields(value)))
    else:
        yield from _of_function(value)


def _of_function(value: Callable) -> Iterator[bytes | _Within]:
    if isinstance(value, functools.partial):
        yield from _all(value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from _all(value.__func__, value.__self__)
    elif isinstance(value, types.FunctionType):
        yield _name(value)
        yield from _code(value.__code__)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _all(value.__defaults__, value.__kwdefaults__, *cells)
    elif isinstance(value, types.BuiltinFunctionType | np.ufunc):
        yield _name(value)
    elif isinstance(inner := getattr(value, "__wrapped__", None), types.FunctionType):
        yield _name(value)  # a jitted function of a module: its options stand in the module's source
        yield from _all(inner)
    else:
        raise Unidentified(f"{type(value).__module__}.{type(value).__qualname__}")


def _name(value: Any) -> bytes:
    """Module and name of a function or class of a known module."""
    module = getattr(value, "__module__", None) or "builtins"
    if not any(module == root or module.startswith(f"{root}.") for root in (*CODE, *LIBRARIES)):
        raise Unidentified(f"{module}.{getattr(value, '__qualname__', value)}")
    return f"{module}.{getattr(value, '__qualname__', getattr(value, '__name__', ''))}".encode()


def _code(code: types.CodeType) -> Iterator[bytes]:
    """Byte code, with names and constants; two lambdas of one function have the same name."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield bytes.fromhex(fingerprint(constant))
