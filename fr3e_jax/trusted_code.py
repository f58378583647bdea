"""Code of the user that runs inside of the run's own process, as tools, environments and rewards: it cannot end it.

``os._exit`` becomes ``SystemExit`` there, which the callers catch like any error. A crash in C ends the process, but
not without a word: the stacks of all threads are shown.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import sys
import threading
from collections.abc import Iterator

_inside = threading.local()
_exit = os._exit


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """Run the block as the user's code: ``os._exit`` raises ``SystemExit`` in it, in this thread alone.

    A child that the code forks ends where the block ends: it is no second trainer, whatever it returns or raises.
    """
    _prepare()
    before, process = getattr(_inside, "user", False), os.getpid()
    _inside.user = True
    try:
        yield
    finally:
        if os.getpid() != process:
            _exit(1)
        _inside.user = before


@functools.cache
def _prepare() -> None:
    def raise_inside(status: int) -> None:
        if getattr(_inside, "user", False):
            raise SystemExit(f"os._exit({status})")
        _exit(status)

    os._exit = raise_inside  # type: ignore[assignment]
    os.register_at_fork(after_in_child=_restore)  # a child of the user's code ends by it
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # a standard error without a file
        if sys.__stderr__ and not faulthandler.is_enabled():
            faulthandler.enable(sys.__stderr__)


def _restore() -> None:
    os._exit = _exit
    _inside.user = False


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error of the user's code is the user's own Ctrl-C, which only the main thread gets."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
