"""Calls outside of the decoder that run beside it, each in a thread of its own.

They run in the run's own process. A call that is late is interrupted at its next line of Python, so that a loop does
not go on beside the run. One that waits in the system stays, but costs nothing. One that holds the interpreter, as
code in C may, cannot be interrupted: then the run stands still.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple


class Overdue(BaseException):
    """A call is past its deadline; not an ``Exception``, which the user's code may catch."""


class Running(NamedTuple):
    """A call that was started; ``thread`` is None if it ran in place."""

    result: Future[Any]
    begun: float  # time.monotonic() of its start
    thread: threading.Thread | None = None

    def wait(self, deadline: float | None) -> Any:
        """The result; None if there is none ``deadline`` seconds after the start: the call is interrupted then.

        ``deadline`` None: wait for ever.
        """
        left = None if deadline is None else max(self.begun + deadline - time.monotonic(), 0.0)
        try:
            return self.result.result(left)
        except concurrent.futures.TimeoutError:
            self.interrupt()
            return None

    def interrupt(self) -> None:
        """Raise `Overdue` in the call's thread, as soon as that runs Python."""
        if self.thread is not None and self.thread.ident is not None and not self.result.done():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident), ctypes.py_object(Overdue))


def start(call: Callable[[], Any], *, at_once: bool, slots: AbstractContextManager | None = None) -> Running:
    """Run ``call``: here, or in a thread that does not keep the process alive; ``slots`` bound their number."""
    result: Future[Any] = Future()

    def run() -> None:
        with slots or contextlib.nullcontext():
            try:
                result.set_result(call())
            except BaseException as error:
                if not result.done():
                    result.set_exception(error)

    if at_once:
        running = Running(result, time.monotonic())
        run()
        return running
    thread = threading.Thread(target=run, name="fr3e-call", daemon=True)
    running = Running(result, time.monotonic(), thread)
    thread.start()
    return running
