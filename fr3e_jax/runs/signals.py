"""Stopping on request: SIGTERM, SIGHUP and the first Ctrl-C ask the loop to stop at a safe point and save.

Before and after the loop, the first two end the process with a line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def ended_with_a_line() -> Iterator[None]:
    """A block in which SIGTERM and SIGHUP end the process as ever, but with a line on stderr.

    It is for what comes before a `StopRequest` and after it. A signal that is ignored stays ignored. In a thread other
    than the main one the block changes nothing.
    """
    owner, before = os.getpid(), {}

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() == owner:  # a forked child has nothing to say
            os.write(2, f"fr3e: ended by {signal.Signals(number).name}\n".encode())
        os.kill(os.getpid(), number)

    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stopped(BaseException):
    """A signal came in work that can be repeated. Not an ``Exception``: no handler of errors may swallow it."""


class StopRequest:
    """Context manager that turns SIGTERM, SIGHUP and SIGINT into a flag for the loop to read at safe points.

    In an `at_once` block they raise `Stopped` instead. A second SIGINT raises ``KeyboardInterrupt`` at once. A SIGHUP
    that is ignored, as ``nohup`` has it, stays ignored. The exit puts the earlier handlers back. Python allows handlers
    in the main thread only. In another thread, the entry installs nothing and the flag stays False.
    """

    def __init__(self) -> None:
        self.received: list[str] = []
        self._at_once = False
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """True once a signal has asked the run to stop."""
        return bool(self.received)

    @contextlib.contextmanager
    def at_once(self, applies: bool = True) -> Iterator[None]:
        """A block of work that can be repeated: a signal that has come, or comes in it, raises `Stopped`.

        ``applies=False`` makes it an ordinary block, for processes that have to stop at the same point.
        """
        self._at_once = applies
        try:
            if applies and self.requested:
                raise Stopped(self.received[0])
            yield
        finally:
            self._at_once = False

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that C code installed: Python cannot put it back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name == "SIGINT" and name in self.received:
            raise KeyboardInterrupt("second Ctrl-C: stopping at once, without saving")
        self.received.append(name)
        if self._at_once:
            self._at_once = False  # a second signal must not interrupt the way out
            raise Stopped(name)
