"""Stopping on request: SIGTERM and the first Ctrl-C ask the loop to finish its step and save."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """Context manager that turns SIGTERM and SIGINT into a flag for the loop to read between steps.

    A second SIGINT raises ``KeyboardInterrupt`` at once. The exit puts the earlier handlers back. Python allows
    handlers in the main thread only. In another thread, the entry installs nothing and the flag stays False.
    """

    def __init__(self) -> None:
        self.received: list[str] = []
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """True once a signal has asked the run to stop."""
        return bool(self.received)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
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
            raise KeyboardInterrupt("second Ctrl-C: stopping without finishing the step")
        self.received.append(name)
