"""The mirror of a run: its folder here, a working copy, is kept alike with its address in an object store.

A run writes its files into the working copy as any run does. A thread puts whole objects into the store, checkpoints
last, and then the object that names them all. So nobody reads half a checkpoint.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fr3e_jax.stores.copies import RECORD, CopyRecord, copy_of, fetch
from fr3e_jax.stores.objects import FileState, Store, StoreFailed

STATE, CHECKPOINTS = ".fr3e_mirror.json", "checkpoints/"
EVERY_SECONDS = 10.0  # between two uploads, each of which is a sign of life
TRIES = 3


@dataclass
class MirroredRun:
    """The object that makes an address a run. A checkpoint is complete if its files are named here.

    Attributes:
      token: names this very state.
      files: sizes and times of change of the run's files.
      writer: process, host and last sign of life of the run that writes here; empty if it has ended.
    """

    token: str = ""
    files: dict[str, FileState] = field(default_factory=dict)
    writer: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store) -> MirroredRun | None:
        """None if the address holds no run.

        Raises:
          StoreFailed: the store cannot be read, or the object is damaged.
        """
        if (content := store.read(STATE)) is None:
            return None
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError) as error:
            raise StoreFailed(
                f"{store.address}/{STATE} is damaged ({error}); restore an earlier version of that object, or choose "
                "another runtime.run_dir"
            ) from error

    def write(self, store: Store) -> None:
        store.write(STATE, json.dumps(asdict(self)).encode())

    def checkpoints(self) -> set[str]:
        """The folders of the complete checkpoints: ``checkpoints/12/``."""
        return {checkpoint_of(name) for name in self.files} - {""}


def checkpoint_of(name: str) -> str:
    """``checkpoints/12/`` for a file of that checkpoint, else ""."""
    parts = name.split("/", 2)
    return f"{CHECKPOINTS}{parts[1]}/" if len(parts) == 3 and name.startswith(CHECKPOINTS) else ""


class Mirror:
    """Uploads in the background; does nothing before `open`.

    Leaving the context completes the upload, unless something other than an ordinary error ends the run.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._has_failed = False  # `complete` raised
        self._uploading, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="fr3e-mirror", daemon=True)

    def open(self, address: str, folder: Path, resume: bool) -> None:
        """Begin to mirror ``folder``, the working copy. To resume, it is brought to the state of the store.

        It is left as it is where it began from that very state: then it holds all of it, and perhaps more, which a kill
        kept from the store.

        Raises:
          FileExistsError: a run is there, and none is resumed.
          FileNotFoundError: no run is there to resume.
          StoreFailed: the store cannot be used.
        """
        store, record = Store(address), CopyRecord(folder)
        run = MirroredRun.read(store)
        is_current = (run.token if run else "") in record.tokens
        exists = run is not None or (is_current and holds_files(folder))
        if resume and not exists:
            raise FileNotFoundError(f"{store.address} holds no run; expected the address of an earlier run")
        if exists and not resume:
            where = "" if run else f" (not yet in the store; its files are in {folder})"
            raise FileExistsError(
                f"runtime.run_dir={store.address} already holds a run{where}; expected a new address: continue that "
                "run with --resume, or choose another runtime.run_dir"
            )
        run = run or MirroredRun()
        if not is_current:  # another machine went on, or the run was deleted from the store
            _move_aside(folder)
            CopyRecord(folder).write("gone")  # until all is there, the folder is at no state of the store
            fetch(store, run.files, folder, fixed=CHECKPOINTS)
            record = CopyRecord(folder)
        record.address = store.address
        record.write(run.token)
        self._store, self._run, self._record, self._folder = store, run, record, folder
        left_over = store.below(CHECKPOINTS.rstrip("/"))  # by an upload that was killed
        store.delete(name for name in left_over if name not in run.files)
        self._thread.start()

    def complete(self) -> None:
        """Wait until the store holds all that is in the folder now.

        Raises:
          StoreFailed: it cannot be uploaded; the working copy has it.
        """
        if self._folder is not None and (failure := self._try()):
            self._has_failed = True
            raise StoreFailed(
                f"{failure}; nothing is lost: the files are in {self._folder}; continue on this machine with "
                f"--resume {self._store.address}"
            )

    def _work(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            self._try()  # a failure that nobody waits for is tried again

    def _try(self) -> str:
        """Upload what has changed; the reason why that failed several times, or ""."""
        reason = ""
        with self._uploading:
            for pause in range(TRIES):
                time.sleep(pause)
                try:
                    self.upload()
                    return ""
                except Exception as error:
                    reason = str(error) if isinstance(error, StoreFailed) else f"{type(error).__name__}: {error}"
        return reason

    def upload(self) -> None:
        """Put into the store what has changed, and name it there; then delete there what the folder lacks."""
        folder, store, files = self._folder, self._store, self._record.files
        assert folder is not None
        there = MirroredRun.read(store)
        if (there.token if there else "") not in self._record.tokens:
            raise StoreFailed(
                f"{store.address} was {'taken over by another run' if there else 'deleted'}; nothing was written there "
                "since. Stop that run, then continue from the last checkpoint with --resume"
            )
        states = {name: _state(folder / name) for name in mirrored_files(folder)}
        gone = files.keys() - states.keys()
        changed = [name for name, state in states.items() if state is None or state != files.get(name)]
        if broken := {checkpoint_of(name) for name in (*gone, *changed)} & self._run.checkpoints():
            self._commit({name: state for name, state in self._run.files.items() if checkpoint_of(name) not in broken})
        missing = set[str]()  # checkpoints that were removed meanwhile
        # The names were listed first, and checkpoints are put last: what a checkpoint claims to be on disk is put.
        for name in sorted(changed, key=lambda name: name.startswith(CHECKPOINTS)):
            try:
                store.upload(name, folder / name)
                files[name] = states[name]
            except FileNotFoundError:
                missing.add(checkpoint_of(name))
        for name in gone:
            del files[name]
        self._commit({name: state for name, state in files.items() if checkpoint_of(name) not in missing - {""}})
        store.delete(gone)

    def _commit(self, files: dict[str, FileState], *, has_ended: bool = False) -> None:
        writer = {"pid": os.getpid(), "host": socket.gethostname(), "beat": time.time()}
        run = MirroredRun(uuid.uuid4().hex, files, {} if has_ended else writer)
        self._record.write(self._run.token, run.token)
        run.write(self._store)
        self._run = run
        self._record.write(run.token)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        has_failed = self._has_failed
        self._ended.set()
        if self._folder is None:
            return
        self._thread.join()
        if kind is not None and not issubclass(kind, Exception):
            return
        try:
            self.complete()
            self._commit(self._run.files, has_ended=True)
        except StoreFailed:
            if kind is None and not has_failed:
                raise


def mirrored_files(folder: Path) -> list[str]:
    """The files of a run's folder that belong into the store; none that is still being written.

    Checkpoints are looked for first: what the run's processes wrote before one of them is then found after it.
    """
    names = dict[str, None]()
    for start in (folder / CHECKPOINTS, folder):
        for parent, folders, files in os.walk(start):
            is_top = start == folder and Path(parent) == folder
            folders[:] = [name for name in folders if ".orbax-checkpoint-tmp" not in name and not name.startswith(".")]
            folders[:] = [name for name in folders if not (is_top and name == CHECKPOINTS.rstrip("/"))]
            # Other hidden files are locks, records and half of a write.
            paths = (Path(parent, name) for name in files if not name.startswith("."))
            names |= {path.relative_to(folder).as_posix(): None for path in paths}
    return list(names)


def _state(path: Path) -> FileState | None:
    """Size and time of change; None if the file was removed since it was listed."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return [state.st_size, state.st_mtime_ns]


def _move_aside(folder: Path) -> None:
    """Keep what a folder holds, but for the lock, beside it."""
    if holds_files(folder):
        aside = folder.with_name(f"{folder.name}.outdated-{datetime.now():%Y%m%d-%H%M%S}")
        aside.mkdir()
        for path in [path for path in folder.iterdir() if path.name not in (".lock", RECORD)]:
            path.rename(aside / path.name)
    (folder / RECORD).unlink(missing_ok=True)


def holds_files(folder: Path) -> bool:
    """True if a working copy holds a run."""
    return (folder / "config.yaml").exists()


def working_copy(address: str) -> Path:
    """The folder of this machine in which the run at ``address`` works."""
    return copy_of(address, "runs")
