"""Stopping on request: the first SIGTERM, SIGINT or SIGHUP asks the run to stop and save, a second ends it at once.

The run asks between two chunks of sampling and at the end of each step (`StopRequest.check`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

SECONDS_APART = 1.0  # of two signals that are not one sent twice


class Stopped(BaseException):
    """The run was asked to stop; the text says by what. Not an ``Exception``: no handler of errors may swallow it."""


class StopRequest:
    """Context manager that turns SIGTERM, SIGINT and SIGHUP into a request that the run reads with `check`.

    Another signal at least `SECONDS_APART` after the first raises ``KeyboardInterrupt`` at once: shells, ``make`` and
    ``timeout`` send one signal to a process twice. A SIGHUP that is ignored, as ``nohup`` has it, stays ignored. The
    exit puts the earlier handlers back. Python allows handlers in the main thread only: in another thread, the entry
    installs none.

    Args:
      agree: ``agree(received, number)`` gives the reason for all processes to stop, or ""; every process asks alike,
        and ``number`` counts the questions. None: one process decides alone.
    """

    def __init__(self, agree: Callable[[list[str], int], str] | None = None) -> None:
        self.received: list[str] = []
        self._agree = agree or (lambda received, signal_number: "".join(received[:1]))
        self._first_at = 0.0
        self._questions = 0
        self._previous: dict[signal.Signals, Any] = {}

    def ask(self, reason: str) -> None:
        """Ask the run to stop, as a signal does; for callbacks."""
        self.received.append(reason)

    def is_asked(self) -> bool:
        """Return whether this process was asked to stop; the others may not have been."""
        return bool(self.received)

    def check(self) -> None:
        """Raise `Stopped` if any process was asked to stop; all processes call it at the same points."""
        self._questions += 1
        if reason := self._agree(self.received, self._questions):
            raise Stopped(reason)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if signal_number == signal.SIGHUP and signal.getsignal(signal_number) is signal.SIG_IGN:
                    continue
                self._previous[signal_number] = signal.signal(signal_number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for signal_number, handler in self._previous.items():
            # None stands for a handler that C code installed: Python cannot put it back.
            signal.signal(signal_number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        name, now = signal.Signals(signal_number).name, time.monotonic()
        if not self._first_at:  # a callback may have asked before
            self._first_at = now
        elif now - self._first_at >= SECONDS_APART:
            raise KeyboardInterrupt(f"{name} after {self.received[0]}: ended at once, without saving")
        self.received.append(name)
