"""Work on devices that one thread dispatches beside other work.

Such work is a generator. It yields arrays before it fetches them, and returns its result. It is resumed when they are
computed, so the thread never waits for them. The host's small programs (`fr3e_jax.programs.shaping_programs`) are the
exception: their results are fetched at once. When the work is resumed changes no result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

import jax

T = TypeVar("T")
Work = Generator[Any, None, T]


class Dispatched(Generic[T]):
    """Work that goes on when it is told to."""

    def __init__(self, work: Work[T]):
        self._work = work
        self._awaited: Any = ()
        self._results: list[T] = []  # one, at the end

    @property
    def is_finished(self) -> bool:
        return bool(self._results)

    def go_on(self) -> None:
        """Do and dispatch what is possible without a wait."""
        while not self.is_finished and are_computed(self._awaited):
            self._resume()

    def finish(self) -> T:
        """Do all that is left, and return the result."""
        while not self.is_finished:
            self._resume()
        return self._results[0]

    def _resume(self) -> None:
        try:
            self._awaited = next(self._work)
        except StopIteration as end:
            self._results.append(end.value)


def are_computed(arrays: Any) -> bool:
    """Return whether the devices have computed all arrays of a tree."""
    return all(array.is_ready() for array in jax.tree.leaves(arrays))


def finished(work: Work[T]) -> T:
    """The result of work that is done at once."""
    return Dispatched(work).finish()
