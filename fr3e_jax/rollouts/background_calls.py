"""Calls outside of the decoder that run beside it, each in a thread of its own.

They run in the run's own process. A call that is late is interrupted at its next line of Python, so that a loop does
not go on beside the run. One that waits in the system stays, but costs nothing. One that holds the interpreter, as
code in C may, cannot be interrupted: then the run stands still, and its threads are shown.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

STANDSTILL_SECONDS = 60.0  # after a deadline, without a line of Python: then the threads are shown


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
            if left is None:
                faulthandler.cancel_dump_traceback_later()
            elif not self.result.done():
                _show_threads_after(left + STANDSTILL_SECONDS)
            return self.result.result(left)
        except concurrent.futures.TimeoutError:
            self.interrupt()
            return None
        finally:
            faulthandler.cancel_dump_traceback_later()

    def interrupt(self) -> None:
        """Raise `Overdue` in the call's thread, as soon as that runs Python."""
        if self.thread is not None and self.thread.ident is not None and not self.result.done():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident), ctypes.py_object(Overdue))


def _show_threads_after(seconds: float) -> None:
    """Have the stacks of all threads written to standard error, which needs no interpreter; not without one."""
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
        faulthandler.dump_traceback_later(seconds, file=sys.__stderr__)


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
    _show_threads_after(10 * STANDSTILL_SECONDS)  # the call may never give the interpreter back
    thread = threading.Thread(target=run, name="fr3e-call", daemon=True)
    running = Running(result, time.monotonic(), thread)
    thread.start()
    return running
