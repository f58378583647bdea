"""Orbax's own reports, which repeat each error for every array and thread, kept off the terminal."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname


def silence_orbax() -> None:
    """Drop Orbax's own reports: it raises each error as well, and prints it once for every array and thread."""
    logger = logging.getLogger("absl")
    logger.removeFilter(_not_from_orbax)
    logger.addFilter(_not_from_orbax)
    if not isinstance(sys.unraisablehook, _WithoutOrbax):
        sys.unraisablehook = _WithoutOrbax(sys.unraisablehook)


class _WithoutOrbax:
    """A hook that passes on all but the complaints of reads and writes that were under way when another one failed."""

    def __init__(self, hook: Any):
        self._hook = hook

    def __call__(self, unraisable: Any) -> None:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(unraisable.exc_traceback)]
        if str(unraisable.exc_value) != "Event loop is closed" and not any("orbax" in file for file in files):
            self._hook(unraisable)
