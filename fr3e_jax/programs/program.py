"""A compiled program: `jax.jit`, which another thread may compile ahead of its first call.

jax keeps what ``lower(...).compile()`` made of a function and calls it when arguments of these types come. Two threads
that need one executable would both compile it. So a call waits for the thread that prepares the same program.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from typing import Any, NamedTuple

import jax

Observer = Callable[[str, Callable[[], Any]], Any]
_observer: Observer | None = None

_COMPILER_OPTIONS = {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}}
"""By platform. On TPU, weights that are split over the axis they are summed over are gathered before their product.

XLA's default multiplies by the pieces as they arrive, and reads and writes the whole result for each of them: with 16
pieces, most of the bytes that a gradient of long rows moves (docs/developers/performance.md). Some of MaxText's
recipes set the same.
"""


class Program:
    """A jitted function; see `jax.jit` for the options.

    Attributes:
      lower, trace: of the jitted function.
    """

    def __init__(self, function: Callable, **options: Any):
        self._out_shardings = options.get("out_shardings")
        chosen = _COMPILER_OPTIONS.get(_platform(self._out_shardings))
        self._jitted = jitted = jax.jit(function, compiler_options=chosen, **options)
        self.lower, self.trace, self._cache_size = jitted.lower, jitted.trace, jitted._cache_size
        self._preparing: dict[Any, threading.Event] = {}
        update_wrapper(self, function)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self._preparing and (ready := self._preparing.get(_types(args, keywords))) is not None:
            ready.wait()
        if _observer is not None and threading.current_thread() is threading.main_thread():
            return _observer(self.name, partial(self._jitted, *args, **keywords))
        return self._jitted(*args, **keywords)

    @staticmethod
    @contextlib.contextmanager
    def observed(observer: Observer) -> Iterator[None]:
        """A block in which ``observer(name, call)`` makes the main thread's calls and returns their results."""
        global _observer
        _observer = observer
        try:
            yield
        finally:
            _observer = None

    def prepare(self, *args: Any, **keywords: Any) -> jax.stages.Compiled:
        """Compile for a later call, and return what was compiled; arrays may be abstract."""
        key = _types(args, keywords)
        ready = self._preparing[key] = threading.Event()
        try:
            return self.lower(*args, **keywords).compile()
        finally:
            del self._preparing[key]
            ready.set()

    def results(self, *args: Any, **keywords: Any) -> Any:
        """Shapes, types and shardings of a call's results."""
        arrays = self._jitted.eval_shape(*args, **keywords)
        shardings = jax.tree.broadcast(self._out_shardings, arrays, is_leaf=lambda x: x is None)

        def described(x, sharding):
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

        return jax.tree.map(described, arrays, shardings)

    @property
    def name(self) -> str:
        """The function's name; of a partial `jax.tree.map`, that of the function it maps."""
        function = self.__wrapped__
        while isinstance(function, partial):
            function = function.args[0] if function.func is jax.tree.map else function.func
        return function.__name__.strip("_")


def _platform(shardings: Any) -> str:
    """The platform of the devices of the first sharding; empty without one."""
    first = next(iter(jax.tree.leaves(shardings)), None)
    return next(iter(first.device_set)).platform if first is not None else ""


def _types(args: tuple, keywords: dict[str, Any]) -> tuple:
    """Hashable: the shapes and types of arrays, and all other arguments as they are."""
    leaves, tree = jax.tree.flatten((args, keywords))
    return tree, *((x.shape, x.dtype) if hasattr(x, "dtype") else x for x in leaves)


def programs_of(owner: Any) -> dict[str, Program]:
    """The programs among the attributes of a module or of an object like `TrainPrograms`, by the attributes' names."""
    return {name: value for name, value in vars(owner).items() if isinstance(value, Program)}


class Declared(NamedTuple):
    """A program with the abstract arguments of its calls."""

    program: Program
    arguments: tuple
    options: dict[str, Any]

    def prepare(self) -> jax.stages.Compiled:
        """Compile it."""
        return self.program.prepare(*self.arguments, **self.options)


class Declarations:
    """The programs of a run in the order of their first use, each once.

    A room of programs declares them as it calls them: ``declare(program, *arguments)`` returns abstract results, which
    are arguments of the next. ``each`` is called with a program when it is declared.
    """

    def __init__(self, each: Callable[[Declared], Any] = lambda declared: None) -> None:
        self._declared: dict[tuple, Declared] = {}
        self._each = each

    def __call__(self, program: Program, *args: Any, **keywords: Any) -> Any:
        shardings = tuple(getattr(x, "sharding", None) for x in jax.tree.leaves((args, keywords)))
        key = id(program), _types(args, keywords), shardings
        results = program.results(*args, **keywords)
        if key not in self._declared:
            self._declared[key] = Declared(program, args, keywords)
            self._each(self._declared[key])
        return results

    def programs(self) -> list[Declared]:
        """All programs declared so far."""
        return list(self._declared.values())


def abstract(shape: tuple[int, ...], dtype: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """An abstract array; without ``sharding`` one of the host."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
