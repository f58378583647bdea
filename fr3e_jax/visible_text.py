"""Text from files, models and users' code, as a terminal may show it: control characters are seen, not obeyed.

``main`` of the command replaces the two output streams, so nothing that is printed can pass by. Tables of `rich` and
the live display write escape sequences themselves; they take ``terminal`` and pass their cells through ``visible``.
It imports the standard library only, and lies beside the rooms: the command loads it at its start.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import IO, Any

_ACTIVE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed, with escape and carriage return
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, overrides and isolates of the writing direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # lone surrogates, which no encoding can write
    "]"
)


def visible(text: str, encoding: str = "utf-8") -> str:
    r"""The text with each control character, and each that ``encoding`` lacks, as ``\uXXXX``.

    Line feeds and tabs stay. The form is that of JSON strings, so printed JSON stays valid.
    """
    text = _ACTIVE.sub(lambda match: _spelled(match[0]), text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = "".join(c if c.encode(encoding, "ignore") else _spelled(c) for c in text)
    return text


def _spelled(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


class OutputFailed(OSError):
    """An output stream cannot be written: its disk is full, or its quota used up."""


class OutputStream:
    """A text stream whose failures to write are ``OutputFailed``; everything else is done by ``raw``.

    A pipe whose reader has gone raises ``BrokenPipeError``, as ever.
    """

    def __init__(self, raw: IO[str]) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        with _named_failures():
            return self.raw.write(text)

    def flush(self) -> None:
        with _named_failures():
            self.raw.flush()

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class VisibleStream(OutputStream):
    """A text stream that writes ``visible`` text to ``raw``."""

    def write(self, text: str) -> int:
        super().write(visible(text, getattr(self.raw, "encoding", None) or "utf-8"))
        return len(text)


@contextlib.contextmanager
def _named_failures() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, OutputFailed):
        raise
    except OSError as error:
        raise OutputFailed(error.errno, f"the output cannot be written: {error.strerror}") from error


def show_control_characters() -> None:
    """Make standard output and error show control characters, for prints, warnings, logs and tracebacks alike."""
    os.environ["PYTHON_COLORS"] = "0"  # or Python 3.13 writes escape sequences into its tracebacks and help texts
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: Any) -> Any:
    if stream is None:  # closed by the shell (>&-), or never there
        stream = open(os.devnull, "w")
    return stream if isinstance(stream, VisibleStream) else VisibleStream(stream)


def discard_output() -> None:
    """Let standard output go nowhere from now on, so that the flush at the exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal(stream: Any) -> Any:
    """The stream below a ``VisibleStream``, for a writer that makes its own text visible; else ``stream``."""
    return OutputStream(stream.raw) if isinstance(stream, VisibleStream) else stream
