"""One worker thread beside the loop: it prepares coming prompts and writes results while the device works."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_MOST_WAITING = 8  # writes; each keeps a step's rollouts in memory until it is done


class WriteFailed(RuntimeError):
    """A file of the run directory could not be written."""


class Background:
    """Runs calls one at a time, in the order in which they were submitted.

    A write that fails stops all later ones, so that no file has a gap. The error is raised at the loop's next `write`
    or `drain`. When `drain` returns, all earlier writes are on disk.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fr3e-background")
        self._writes: deque[Future] = deque()
        self._failure: WriteFailed | None = None
        self.seconds = 0.0  # that the worker was busy
        self.wait_seconds = 0.0  # that the loop waited for it

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Run ``function(*arguments)`` in its turn; the future gets its result or its error."""
        return self._executor.submit(self._timed, function, *arguments)

    def write(self, what: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Run ``function(*arguments)`` in its turn; block while too many writes are waiting.

        Args:
          what: names the content that the function writes, for the message of an error.
          function, arguments: the write; the arguments must not change afterwards.

        Raises:
          WriteFailed: an earlier write failed; the message says which and why.
        """
        while self._writes and (self._writes[0].done() or len(self._writes) >= _MOST_WAITING):
            self._oldest()
        self._raise_failure()
        self._writes.append(self.call(self._guarded, what, function, *arguments))

    def drain(self) -> None:
        """Wait until everything passed to `write` is written.

        Raises:
          WriteFailed: a write failed.
        """
        while self._writes:
            self._oldest()
        self._raise_failure()

    def _oldest(self) -> None:
        start = time.perf_counter()
        self._writes.popleft().result()
        self.wait_seconds += time.perf_counter() - start

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _guarded(self, what: str, function: Callable[..., Any], *arguments: Any) -> None:
        if self._failure is not None:
            return
        try:
            function(*arguments)
        except Exception as error:
            self._failure = WriteFailed(
                f"writing {what} failed in the background: {type(error).__name__}: {error}; nothing was written "
                "after it. Check free space and permissions, then continue from the last checkpoint with --resume"
            )
            self._failure.__cause__ = error

    def _timed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.seconds += time.perf_counter() - start

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Finish all calls; a failed write raises, unless another error is being raised already."""
        self._executor.shutdown(wait=True)
        if kind is None:
            self.drain()
