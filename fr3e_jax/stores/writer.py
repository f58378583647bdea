"""The writer of a run in a store: an object that names it, renewed as a sign of life.

Object stores have no locks. A newcomer waits until the writer has been silent for long enough, then writes its own name
and looks a moment later whether it still stands there: of two newcomers, the later one wins.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from datetime import datetime
from typing import Any

from fr3e_jax.stores.objects import Store, StoreFailed

WRITER = ".lock"
BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0
SETTLE_SECONDS = 1.0  # between writing one's name and reading it back


class StoreInUse(StoreFailed):
    """Another run writes there, or has taken this run's place."""


class StoreWriter:
    """The right to write to an address, from `acquire` to `release`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name: dict[str, Any] = {}
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._beat, daemon=True)

    def acquire(self) -> None:
        """Take the place of nobody, of a writer of this machine that has ended, or of one that is silent.

        Raises:
          StoreInUse: another run writes there.
        """
        if (found := writer_of(self._store)) and not _has_ended(found):
            self._wait_for_silence(found)
        started = datetime.now().isoformat(" ", "seconds")
        self._name = {"id": uuid.uuid4().hex, "pid": os.getpid(), "host": socket.gethostname(), "started": started}
        self._sign()
        time.sleep(SETTLE_SECONDS)
        self.check()
        self._thread.start()

    def check(self) -> None:
        """Raises StoreInUse if another run has taken this one's place."""
        found = writer_of(self._store)
        if found.get("id") != self._name["id"]:
            raise StoreInUse(
                f"{self._store.address} was {'taken over by ' + _described(found) if found else 'deleted'}; nothing "
                "was written there since. Stop that run, then continue from the last checkpoint with --resume"
            )

    def release(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._name and writer_of(self._store).get("id") == self._name["id"]:
            self._store.delete([WRITER])

    def _sign(self) -> None:
        self._store.write(WRITER, json.dumps(self._name | {"beat": time.time()}).encode())

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self.check()
                self._sign()
            except StoreInUse:
                return  # the mirror finds out before its next write
            except OSError:
                pass  # the store is away; a newcomer would not reach it either

    def _wait_for_silence(self, found: dict[str, Any]) -> None:
        end = time.monotonic() + SILENT_SECONDS - max(0.0, min(SILENT_SECONDS, time.time() - found.get("beat", 0.0)))
        while time.monotonic() < end:
            time.sleep(min(1.0, SILENT_SECONDS / 10))
            now = writer_of(self._store)
            if not now:
                return
            if now != found:
                raise StoreInUse(
                    f"{self._store.address} is in use by {_described(now)}. Wait for it, stop it, or choose another "
                    "runtime.run_dir"
                )


def writer_of(store: Store) -> dict[str, Any]:
    """The writer that the store names; empty if there is none."""
    try:
        content = json.loads(store.read(WRITER) or b"{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _described(found: dict[str, Any]) -> str:
    return (
        f"the run of process {found.get('pid', 'unknown')} on {found.get('host', 'an unknown machine')}, started "
        f"{found.get('started', 'at an unknown time')}"
    )


def _has_ended(found: dict[str, Any]) -> bool:
    """Whether it was a process of this machine that is no more."""
    if found.get("host") != socket.gethostname() or not isinstance(found.get("pid"), int):
        return False
    try:
        os.kill(found["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return found["pid"] == os.getpid()  # the number was given again, to this very process
