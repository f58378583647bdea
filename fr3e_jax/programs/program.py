"""A compiled program that can be fetched whole: `jax.jit`, and executables that an earlier process has stored.

`jax.jit` traces and lowers a function in Python before it asks the compilation cache for the result of XLA. At a second
start this takes most of the time. So every program of this package is declared as a `Program`. Without a store, and on
several devices, it calls the jitted function. With one (`keep_executables`) it looks for an executable under a name
that says all the executable depends on, and calls that. `fr3e_jax.runs.stored_executables` is the store; files are its
matter.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial, update_wrapper
from typing import Any, Protocol

import jax
import numpy as np

from fr3e_jax.programs.fingerprints import Unidentified, fingerprint
from fr3e_jax.programs.rehearsal import Pretended, current_rehearsal


class Executables(Protocol):
    """Executables that outlive the process."""

    def fetch(self, program: str) -> jax.stages.Compiled | None:
        """The executable of a program with this fingerprint; None: it has to be lowered."""

    def compile(self, program: str, interface: str, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Compile and store, or fetch what is stored for an equal program.

        ``interface``: a fingerprint of the arguments and of the options of jit, which the lowered text does not tell.
        """


_executables: Executables | None = None


def keep_executables(executables: Executables | None) -> None:
    """From now on, all programs of this process take their executables from here; None: each compiles its own."""
    global _executables
    _executables = executables


_before_compiling: Callable[[], None] | None = None


def before_compiling(callback: Callable[[], None] | None) -> None:
    """``callback`` is called once, before this process lowers and compiles its next program; None: nothing is."""
    global _before_compiling
    _before_compiling = callback


def _compiling_begins() -> None:
    global _before_compiling
    callback, _before_compiling = _before_compiling, None
    if callback is not None:
        callback()


def keeps_executables() -> bool:
    """Whether programs call executables that they keep; a stored one runs on all devices or on none."""
    return _executables is not None and jax.device_count() == 1


_programs: weakref.WeakSet[Program] = weakref.WeakSet()


def drop_executables() -> None:
    """Forget all executables in memory, also those of `jax.jit`: each maps some 15 regions of the process's memory."""
    for program in list(_programs):
        program._ready.clear()
    jax.clear_caches()


class Program:
    """A jitted function; see `jax.jit` for the options. Static arguments are passed as they are declared.

    The settings of jax count as they are when the first program is called, except for the precision of products.
    """

    def __init__(self, function: Callable, *, static_argnums=(), static_argnames=(), **options: Any):
        as_tuple = lambda x: (x,) if isinstance(x, int | str) else tuple(x)
        self._positions, self._names = frozenset(as_tuple(static_argnums)), frozenset(as_tuple(static_argnames))
        self._options = options | {"static_argnums": static_argnums, "static_argnames": static_argnames}
        # With unused arguments kept, the lowered text and the arguments' types say all about an executable.
        self._jitted = jax.jit(function, keep_unused=True, **self._options)
        self._lock = threading.Lock()
        self._ready: dict[Any, jax.stages.Compiled] = {}
        self._compiling: dict[Any, Future[jax.stages.Compiled]] = {}
        self._own: str | None = None  # fingerprint of function and options
        update_wrapper(self, function)
        _programs.add(self)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        rehearsal = current_rehearsal()
        if rehearsal is None and not keeps_executables():
            return self._jitted(*args, **keywords)
        static, passed, named = self._sorted(args, keywords)
        leaves, tree = jax.tree.flatten((passed, named))
        types = tuple(map(_type_of, leaves))
        if None in types:  # within another function that is traced, or an argument that jax refuses
            return self._jitted(*args, **keywords)
        key = (static, tree, types, jax.config.jax_default_matmul_precision)
        shardings = self._options.get("out_shardings")
        if rehearsal is not None and (shardings is not None or any(isinstance(x, Pretended) for x in leaves)):
            return rehearsal.call(self, key, args, keywords, shardings)
        if not keeps_executables():
            return self._jitted(*args, **keywords)
        executable = self._ready.get(key)
        return (self.executable(key, args, keywords) if executable is None else executable)(*passed, **named)

    def executable(self, key: Any, args: tuple, keywords: dict[str, Any]) -> jax.stages.Compiled:
        """The executable for arguments of these types; of several threads that ask for it, one compiles."""
        with self._lock:
            if key in self._ready:
                return self._ready[key]
            compiles = key not in self._compiling
            future = self._compiling.setdefault(key, Future())
        if not compiles:
            return future.result()
        try:
            executable = self._ready[key] = self._obtained(key, args, keywords)
            future.set_result(executable)
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            del self._compiling[key]
        return executable

    def prepare(self, key: Any, args: tuple, keywords: dict[str, Any]) -> None:
        """Get the executable for a later call, unless another thread does or has; arrays may be abstract."""
        if key not in self._ready and key not in self._compiling:
            self.executable(key, args, keywords)

    def abstract_arguments(self, args: tuple, keywords: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments with shapes and types in place of arrays."""
        passed = tuple(x if i in self._positions else jax.tree.map(_abstract, x) for i, x in enumerate(args))
        named = {name: x if name in self._names else jax.tree.map(_abstract, x) for name, x in keywords.items()}
        return passed, named

    @property
    def name(self) -> str:
        """The function's name; of a partial `jax.tree.map`, that of the function it maps."""
        function = self.__wrapped__
        while isinstance(function, partial):
            function = function.args[0] if function.func is jax.tree.map else function.func
        return function.__name__.strip("_")

    def lower(self, *args: Any, **keywords: Any) -> jax.stages.Lowered:
        """As `jax.stages.Wrapped.lower`."""
        return self._jitted.lower(*args, **keywords)

    def trace(self, *args: Any, **keywords: Any) -> jax.stages.Traced:
        """As `jax.stages.Wrapped.trace`."""
        return self._jitted.trace(*args, **keywords)

    def eval_shape(self, *args: Any, **keywords: Any) -> Any:
        """As `jax.eval_shape`."""
        return self._jitted.eval_shape(*args, **keywords)

    def _cache_size(self) -> int:
        """The number of executables in memory."""
        return self._jitted._cache_size() + len(self._ready)

    def _sorted(self, args: tuple, keywords: dict[str, Any]) -> tuple[tuple, tuple, dict[str, Any]]:
        """Static arguments, each with its name and type, and the others."""
        at, names = self._positions, self._names
        static = [(i, type(x), x) for i, x in enumerate(args) if i in at] if at else []
        if not names:
            return tuple(static), tuple(x for i, x in enumerate(args) if i not in at) if at else args, keywords
        static += [(name, type(x), x) for name, x in sorted(keywords.items()) if name in names]
        named = {name: x for name, x in keywords.items() if name not in names}
        return tuple(static), tuple(x for i, x in enumerate(args) if i not in at) if at else args, named

    def _obtained(self, key: Any, args: tuple, keywords: dict[str, Any]) -> jax.stages.Compiled:
        static, tree, types, precision = key
        try:
            if self._own is None:
                self._own = fingerprint((self.__wrapped__, sorted(self._options.items())))
            interface = fingerprint((str(tree), types, precision, sorted(self._options.items())))
            name = fingerprint((self._own, static, interface))
        except Unidentified:  # a function from elsewhere: its code is not among those that name a program
            _compiling_begins()
            return self._jitted.lower(*args, **keywords).compile()
        found = _executables.fetch(name)
        if found is None:
            _compiling_begins()
            found = _executables.compile(name, interface, self._jitted.lower(*args, **keywords))
        return found


def _type_of(leaf: Any) -> Any:
    """Hashable: what jax compiles for; None: neither an array nor a number."""
    kind = type(leaf)
    read = _READERS.get(kind)
    if read is None:
        if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array | np.ndarray | np.generic | Pretended):
            return None
        read = _READERS[kind] = _of_array if isinstance(leaf, jax.Array | Pretended) else _of_numpy
    return read(leaf)


def _abstract(leaf: Any) -> Any:
    if not hasattr(leaf, "shape"):
        return leaf
    sharding = leaf.sharding if getattr(leaf, "committed", False) else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=getattr(leaf, "weak_type", False))


def _of_array(x: jax.Array | Pretended) -> tuple:
    return x.shape, x.dtype, x.weak_type, x.sharding if x.committed else None


def _of_numpy(x: np.ndarray | np.generic) -> tuple:
    return x.shape, x.dtype, False, None


_READERS: dict[type, Callable[[Any], Any]] = {kind: type for kind in (bool, int, float, complex)}
