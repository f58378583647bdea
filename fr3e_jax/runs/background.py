"""One worker thread beside the loop: it prepares coming prompts and writes results while the device works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_MOST_WAITING = 8  # writes
MOST_BYTES = 2**32  # that the arrays of waiting writes hold; a step whose arrays are larger waits alone


class WriteFailed(RuntimeError):
    """A file of the run directory could not be written."""


class Background:
    """Runs calls one at a time, in the order in which they were submitted.

    A write that fails stops all later ones, so that no file has a gap. The error is raised at the loop's next `write`
    or `drain`. When `drain` returns, all earlier writes are on disk.

    Args:
      gather: of several processes, each of which writes: the content of every one, at the same calls on all. Then a
        failure is raised on all of them at once, by `drain` or `check`, and `write` raises nothing.
    """

    def __init__(self, gather: Callable[[str], list[str]] | None = None) -> None:
        self._gather = gather
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fr3e-background")
        self._writes: deque[tuple[Future, int]] = deque()  # with the bytes that each holds
        self._held = 0
        self._failure: WriteFailed | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Run ``function(*arguments)`` in its turn; the future gets its result or its error."""
        return self._executor.submit(function, *arguments)

    def write(self, what: str, function: Callable[..., Any], *arguments: Any, size_bytes: int = 0) -> None:
        """Run ``function(*arguments)`` in its turn; block while too many writes or bytes (`MOST_BYTES`) are waiting.

        Args:
          what: names the content that the function writes, for the message of an error.
          function, arguments: the write; the arguments must not change afterwards.
          size_bytes: size of the arrays that it keeps in memory until it is done.

        Raises:
          WriteFailed: an earlier write failed; the message says which and why.
        """
        while self._writes and (
            self._writes[0][0].done() or len(self._writes) >= _MOST_WAITING or self._held + size_bytes > MOST_BYTES
        ):
            self._oldest()
        if self._gather is None:
            self._raise_failure()
        self._writes.append((self.call(self._guarded, what, function, *arguments), size_bytes))
        self._held += size_bytes

    def drain(self) -> None:
        """Wait until everything passed to `write` is written.

        Raises:
          WriteFailed: a write failed.
        """
        self._finish()
        self.check()

    def check(self) -> None:
        """Raise if a write has failed, on any of several processes; wait for none.

        Raises:
          WriteFailed: on all of them, with the first failure.
        """
        if self._gather is not None and any(failures := self._gather(str(self._failure or ""))):
            index, reason = next((index, text) for index, text in enumerate(failures) if text)
            raise self._failure or WriteFailed(f"process {index}: {reason}")
        self._raise_failure()

    def _finish(self) -> None:
        while self._writes:
            self._oldest()

    def _oldest(self) -> None:
        future, size = self._writes.popleft()
        future.result()
        self._held -= size

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

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Finish all calls; a failed write raises, unless another error is being raised already."""
        self._executor.shutdown(wait=True)
        if kind is None:  # the other processes may be elsewhere
            self._finish()
            self._raise_failure()
