"""The state of a run: running, finished, stopped, failed or interrupted, and why.

A run writes ``status.json`` when it begins and when it ends in any way that it can notice. A run that says "running"
while nobody holds its lock was interrupted: it was killed, or its machine went down.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Literal

from typing_extensions import TypedDict

from fr3e_jax.runs.run_directory import RunDirectory, write_json_atomic
from fr3e_jax.runs.run_lock import writer
from fr3e_jax.stored_json import Count, DamagedRecord, Number, read_record

State = Literal["running", "finished", "stopped", "failed", "interrupted"]
"""``stopped``: by a signal, and ready to resume. ``interrupted``: without a last word."""


class Status(TypedDict):
    """The content of ``status.json`` that readers use."""

    state: State
    reason: str


class Summary(TypedDict, total=False):
    """The content of ``summary.json`` that readers use. ``before`` and ``after``: the held-out metrics."""

    recipe: str
    algorithm: str
    seed: Number
    steps: Count
    updates: Count
    sampled_tokens: Number
    loss_tokens: Number
    trained_positions: Number
    cpu_seconds: Number
    wall_seconds: Number
    compilations: dict[str, Number]
    before: dict[str, Number | None] | None
    after: dict[str, Number | None] | None


@dataclass(frozen=True)
class RunState:
    """The state of a run and the reason of its end, one line; "" while it runs."""

    state: State
    reason: str = ""


class StatusFile:
    """Context manager around a run: it writes that the run goes on, and at the end how it ended.

    The run calls `end` when it ends in order. An exception that leaves the block is a failure with its own text.

    Args:
      run_dir: the run's directory.
      writes: false for all processes but the first, which write nothing.
    """

    def __init__(self, run_dir: RunDirectory, writes: bool = True) -> None:
        self._path, self._writes = run_dir.status, writes
        self._ending = RunState("failed", "the run ended without saying why")

    def end(self, state: State, reason: str = "") -> None:
        """Set how the run ended; the file is written when the block ends. Of a traceback the last line is kept."""
        lines = [line.strip() for line in reason.splitlines() if line.strip()] or [""]
        self._ending = RunState(state, lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}")

    @property
    def ending(self) -> RunState:
        """How the run ended, once it has."""
        return self._ending

    def __enter__(self) -> StatusFile:
        self._write(RunState("running"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.end("stopped", str(error) or "interrupted")
        elif error is not None:
            self.end("failed", f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError):  # the directory is gone or the disk is full: the run has said so already
            self._write(self._ending)

    def _write(self, ending: RunState) -> None:
        if self._writes and self._path.parent.is_dir():
            now = datetime.now().astimezone().isoformat(timespec="seconds")
            write_json_atomic(self._path, {"state": ending.state, "reason": ending.reason, "time": now})


def run_state(run_dir: RunDirectory) -> RunState:
    """The state of the run in a directory, from its status and its lock. Nothing there is changed."""
    if holder := writer(run_dir.path):
        return RunState("running", f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'another machine')}")
    try:
        status = read_record(Status, run_dir.status.read_bytes(), run_dir.status.name)
    except FileNotFoundError:  # the run ended before its first step
        return RunState("interrupted", "no status was written")
    except (OSError, DamagedRecord) as error:
        return RunState("interrupted", f"{run_dir.status.name} is damaged: {error}")
    if status["state"] == "running":
        return RunState("interrupted", "killed, or its machine went down")
    return RunState(status["state"], status["reason"])


def read_summary(path: Path) -> Summary | None:
    """The summary of a finished run; None without the file. A damaged one is named on stderr and passed over."""
    try:
        return read_record(Summary, path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except (OSError, DamagedRecord) as error:
        print(f"fr3e: {error}; going on without {path.name}", file=sys.stderr)
        return None
