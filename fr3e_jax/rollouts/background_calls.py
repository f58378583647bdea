"""Calls outside of the decoder that run beside it, each in a thread of its own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple


class Running(NamedTuple):
    """A call that was started."""

    result: Future[Any]
    begun: float  # time.monotonic() of its start

    def wait(self, deadline: float | None) -> Any:
        """The result; None if there is none ``deadline`` seconds after the start. None: wait for ever."""
        left = None if deadline is None else max(self.begun + deadline - time.monotonic(), 0.0)
        try:
            return self.result.result(left)
        except concurrent.futures.TimeoutError:
            return None


def start(call: Callable[[], Any], *, at_once: bool, slots: AbstractContextManager | None = None) -> Running:
    """Run ``call``: here, or in a thread that does not keep the process alive; ``slots`` bound their number."""
    running = Running(Future(), time.monotonic())

    def run() -> None:
        with slots or contextlib.nullcontext():
            try:
                running.result.set_result(call())
            except BaseException as error:
                running.result.set_exception(error)

    if at_once:
        run()
    else:
        threading.Thread(target=run, name="fr3e-call", daemon=True).start()
    return running
