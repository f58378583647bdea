"""Rehearsals: the host's part of a run without its programs, to learn which programs the run will call.

Within `rehearsing` a `Program` of this thread is traced instead of called. Its results are `Pretended` arrays: shape,
type and sharding, and zeros for whoever reads them. So the code of a run itself, with its schedule, its packing and its
sizes, tells what will be compiled; nothing has to repeat it. A program that gets no pretended array and whose results
stay on the host (advantages, anchors) is called as always, because the run decides by its values.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding


class Pretended(jax.ShapeDtypeStruct):
    """An array that no device holds; it reads as zeros."""

    __slots__ = ()
    committed = True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.zeros(self.shape, dtype or self.dtype)

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0

    def delete(self) -> None:
        """As `jax.Array.delete`."""


def pretended(tree: Any) -> Any:
    """Abstract arrays, each with its sharding, as pretended ones."""
    return jax.tree.map(lambda x: Pretended(x.shape, x.dtype, sharding=x.sharding), tree)


def _laid_out(tree: Any, shardings: Any) -> Any:
    """Abstract arrays as pretended ones; ``shardings``: a sharding, or a tree that ``tree`` refines."""
    whole = jax.tree.broadcast(shardings, tree, is_leaf=lambda x: x is None)
    return jax.tree.map(lambda x, sharding: Pretended(x.shape, x.dtype, sharding=sharding), tree, whole)


@dataclass
class Call:
    """A program with the shapes that it is called with."""

    program: Any
    key: Any  # of the program's executables
    args: tuple  # abstract arrays, and static arguments as they are
    keywords: dict[str, Any]
    results: Any  # abstract
    count: int = 0  # calls in the rehearsal


@dataclass
class Rehearsal:
    """The calls of a rehearsal, in the order of their first appearance."""

    calls: dict[Any, Call] = field(default_factory=dict)

    def call(self, program: Any, key: Any, args: tuple, keywords: dict[str, Any], shardings: Any) -> Any:
        """Trace a program, unless it was, and return its results."""
        found = self.calls.get((id(program), key))
        if found is None:
            abstract = program.abstract_arguments(args, keywords)
            results = program.trace(*abstract[0], **abstract[1]).out_info
            found = Call(program, key, *abstract, _laid_out(results, shardings))
            self.calls[id(program), key] = found
        found.count += 1
        return found.results


_local = threading.local()


def current_rehearsal() -> Rehearsal | None:
    """The rehearsal of this thread."""
    return getattr(_local, "rehearsal", None)


@contextlib.contextmanager
def rehearsing() -> Iterator[Rehearsal]:
    """Within the block, programs that this thread calls are traced, and `on_mesh` moves nothing."""
    before, _local.rehearsal = current_rehearsal(), Rehearsal()
    try:
        yield _local.rehearsal
    finally:
        _local.rehearsal = before


def placed(tree: Any, sharding: Sharding) -> Any:
    """What `fr3e_jax.programs.host_arrays.on_mesh` gives in a rehearsal."""
    kind = lambda x: jax.dtypes.canonicalize_dtype(np.result_type(x) if not hasattr(x, "dtype") else x.dtype)
    return jax.tree.map(lambda x: Pretended(np.shape(x), kind(x), sharding=sharding), tree)
