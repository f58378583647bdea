"""The part of pytest that tests of programs use, for a process without packages; standard library only."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Failed(AssertionError):
    """A test failed by `fail`, or as an exception did not come."""


class RaisesInfo:
    """The exception of a block; ``value`` is set when it ends."""

    value: BaseException | None = None

    @property
    def type(self) -> type:
        return type(self.value)


@contextlib.contextmanager
def raises(expected: type | tuple[type, ...], match: str = "") -> Iterator[RaisesInfo]:
    """Expect an exception whose text matches ``match`` in the block."""
    caught = RaisesInfo()
    try:
        yield caught
    except expected as error:
        caught.value = error
        if match and not re.search(match, str(error)):
            raise Failed(f"{match!r} does not match {error}") from error
        return
    raise Failed(f"no {expected}")


class approx:  # noqa: N801 - pytest's name
    """A number, or a collection of numbers, equal to those within ``rel`` of its size or ``abs``."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None):
        self.expected, self.relative, self.absolute = expected, rel, abs

    def __eq__(self, other: object) -> bool:
        return self._agrees(other, self.expected)

    def _agrees(self, value: Any, expected: Any) -> bool:
        if isinstance(expected, Mapping):
            same = isinstance(value, Mapping) and value.keys() == expected.keys()
            return same and all(self._agrees(value[key], expected[key]) for key in expected)
        if isinstance(expected, list | tuple):
            same = isinstance(value, list | tuple) and len(value) == len(expected)
            return same and all(map(self._agrees, value, expected))
        if not isinstance(expected, int | float) or not isinstance(value, int | float):
            return bool(value == expected)
        relative = self.relative if self.relative is not None else 1e-6 if self.absolute is None else 0.0
        return math.isclose(
            value, expected, rel_tol=relative, abs_tol=1e-12 if self.absolute is None else self.absolute
        )


class _Marks:
    """Marks; only ``parametrize`` changes how a test runs."""

    @staticmethod
    def parametrize(names: str | list[str], values: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        cases = [dict(zip(keys, value if len(keys) > 1 else [value], strict=True)) for value in values]

        def mark(function: Callable[..., Any]) -> Callable[..., Any]:
            earlier = getattr(function, "cases", [{}])
            function.cases = [case | other for case in cases for other in earlier]  # type: ignore[attr-defined]
            return function

        return mark

    def __getattr__(self, name: str) -> Any:
        def mark(*arguments: Any, **options: Any) -> Any:
            is_bare = len(arguments) == 1 and callable(arguments[0])
            return arguments[0] if is_bare else lambda function: function

        return mark


mark = _Marks()


def param(*values: Any, **options: Any) -> Any:
    """A case of `parametrize`."""
    return values if len(values) > 1 else values[0]


def fixture(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A function that makes an argument of tests."""
    if function is None:
        return fixture
    function.is_fixture = True  # type: ignore[attr-defined]
    return function


def fail(reason: str = "") -> None:
    """Fail the test."""
    raise Failed(reason)


def main(*arguments: Any, **options: Any) -> int:
    """Do nothing: the judge runs the tests."""
    return 0


def run(function: Callable[..., Any], namespace: Mapping[str, Any], candidate: Any = None) -> None:
    """Call a test for each of its cases, with fixtures of ``namespace``; its first other argument is ``candidate``."""
    for case in getattr(function, "cases", [{}]):
        arguments, free = dict(case), [] if candidate is None else [candidate]
        for name in _required(function):
            if name in arguments:
                continue
            value = namespace.get(name)
            if getattr(value, "is_fixture", False):
                result = value()
                arguments[name] = next(result) if hasattr(result, "__next__") else result
            elif free:
                arguments[name] = free.pop()
            else:
                raise TypeError(f"the test has the argument {name}, which nothing makes")
        function(**arguments)


def run_class(kind: type, namespace: Mapping[str, Any]) -> None:
    """Run the tests of a class named ``Test...``, each on an object of its own."""
    for name in [name for name in dir(kind) if name.startswith("test")]:
        instance = kind()
        for before in ("setup_class", "setup_method"):
            method = getattr(instance, before, None)
            if method is not None:
                method(*[None] * len(_required(method)))
        run(getattr(instance, name), namespace)


def _required(function: Any) -> tuple[str, ...]:
    """The names of a function's arguments without a default; ``inspect`` takes longer than all other imports."""
    bound = int(hasattr(function, "__self__"))
    code, defaults = function.__code__, function.__defaults__ or ()
    return code.co_varnames[bound : code.co_argcount - len(defaults)]
