"""The lock of a run directory: one run writes there, and it notices when the directory is gone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from fr3e_jax.configuration import ConfigError

LOCK = ".lock"
BEAT_SECONDS = 15.0  # between two signs of life of a writer
SILENT_SECONDS = 60.0  # after which a writer on another machine counts as dead


class RunDirectoryGone(OSError):
    """The run directory was deleted or moved, or another run took it over, while this run was writing to it."""


class RunLock:
    """The right to write to a run directory, held until `release` or the end of the process.

    The file ``.lock`` names the writer. On one machine, the operating system holds the lock and frees it when the
    writer ends, however it ends. Some shared file systems do not pass such locks between machines. So the writer also
    renews the file's time every ``BEAT_SECONDS``, and a newcomer on another machine waits for that: after
    ``SILENT_SECONDS`` without a sign of life the writer counts as dead.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._descriptor = -1
        self._ended = threading.Event()

    def acquire(self, directory: Path) -> None:
        """Take the lock of ``directory``, which exists.

        Raises:
          ConfigError: another run writes there; the message names its process, its machine and its start.
        """
        path = Path(directory) / LOCK
        if path.is_dir():
            raise ConfigError(f"{path} is a directory; expected the file that names the writer: remove the directory")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
            holder = _holder(descriptor)
            if holder.get("host", socket.gethostname()) != socket.gethostname():
                _wait_for_silence(descriptor, path, holder)
        except BaseException:
            os.close(descriptor)
            raise
        started = datetime.now().isoformat(" ", "seconds")
        os.truncate(descriptor, 0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        self._path, self._descriptor = path, descriptor
        self._thread = threading.Thread(target=self._beat, name="fr3e-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Do nothing while this run holds the lock, or before it has one.

        Raises:
          RunDirectoryGone: the lock file is not where it was made.
        """
        if self._path is None:
            return
        try:
            same = os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            same = False
        if not same:
            raise RunDirectoryGone(
                f"{self._path.parent} was deleted or moved, or another run took it over; nothing was written there "
                "since. Put it back, or find its new place, then continue from its last checkpoint with --resume"
            )

    def release(self) -> None:
        """Give the lock back. The file stays, without a name in it: another run may have opened it already."""
        if self._path is None:
            return
        self._ended.set()
        self._thread.join()  # before the descriptor's number can belong to another file
        os.truncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._path = None

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # closed, or the file system is away
                os.utime(self._descriptor)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _lock(descriptor: int, path: Path) -> None:
    """Take the operating system's lock; a file system without locks leaves the decision to the file's content."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _taken(path, _holder(descriptor)) from None
    except OSError:
        holder = _holder(descriptor)
        pid = holder.get("pid")
        if holder.get("host") == socket.gethostname() and pid != os.getpid() and _is_alive(pid):
            raise _taken(path, holder) from None


def _taken(path: Path, holder: dict[str, Any]) -> ConfigError:
    return ConfigError(
        f"{path.parent} is in use by the run of process {holder.get('pid', 'unknown')} on "
        f"{holder.get('host', 'an unknown machine')}, started {holder.get('started', 'at an unknown time')}. "
        "Wait for it, stop it, or choose another runtime.run_dir"
    )


def _wait_for_silence(descriptor: int, path: Path, holder: dict[str, Any]) -> None:
    """Return once the writer on another machine has been silent for ``SILENT_SECONDS``.

    Raises:
      ConfigError: the writer gave a sign of life.
    """
    seen = os.fstat(descriptor).st_mtime_ns
    end = time.monotonic() + SILENT_SECONDS - _age(descriptor, path)
    while time.monotonic() < end:
        if os.fstat(descriptor).st_mtime_ns != seen:
            raise _taken(path, holder)
        time.sleep(0.2)


def _holder(descriptor: int) -> dict[str, Any]:
    """The writer that the file names; empty for a new or torn file."""
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _age(descriptor: int, path: Path) -> float:
    """Seconds since the last sign of life, by the clock of the file system, which may differ from this machine's."""
    probe = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}")
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink()
    return now - os.fstat(descriptor).st_mtime


def _is_alive(pid: Any) -> bool:
    """Return whether a process of this machine has that number."""
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def writer(directory: Path) -> dict[str, Any]:
    """The process that writes to a run directory now, as its lock names it (pid, host, started); empty without one.

    The lock itself is not tried, as that could refuse a run that begins at this moment: a writer gives a sign of life.
    """
    path = Path(directory) / LOCK
    try:
        content = json.loads(path.read_bytes() or b"{}")
        silent = time.time() - path.stat().st_mtime
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or silent > SILENT_SECONDS:
        return {}
    return content if content.get("host") != socket.gethostname() or _is_alive(content.get("pid")) else {}
