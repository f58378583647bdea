"""The mirror of a run: its folder here, a working copy, is kept alike with its address in an object store.

A run writes its files into the working copy as any run does. A thread puts whole objects into the store, checkpoints
last, and then the object that names them all. So nobody reads half a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fr3e_jax.stores.copies import RECORD, CopyRecord, FileDamaged, copy_of, fetch, is_state
from fr3e_jax.stores.objects import TRIES, FileState, Store, StoreFailed

STATE, CHECKPOINTS = ".fr3e_mirror.json", "checkpoints/"
EVERY_SECONDS = 10.0  # between two uploads, each of which is a sign of life
LONGEST_PAUSE = 300.0  # seconds between two uploads while they fail
NOTICE_SECONDS = 3.0  # of waiting for the store without a word
_GLANCE = 0.1  # seconds between two looks at a request to stop


class RunGone(StoreFailed):
    """The run in the store was deleted, or another one took it over."""


def never() -> bool:
    return False


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
            run = cls(**json.loads(content))
            if damage := run._damage():
                raise ValueError(damage)
            return run
        except (ValueError, TypeError, RecursionError) as error:
            raise StoreFailed(
                f"{store.address}/{STATE} is damaged ({error}); restore an earlier version of that object, or choose "
                "another runtime.run_dir"
            ) from error

    def _damage(self) -> str:
        """The first entry that no run writes; "" if all is well."""
        if not (isinstance(self.token, str) and isinstance(self.files, dict) and isinstance(self.writer, dict)):
            return "found other types than a text and two objects"
        for name, state in self.files.items():
            if not is_state(state) or not name or name.startswith("/") or ".." in name.split("/"):
                return f"found the file {name!r} with {state!r}"
        beat = self.writer.get("beat", 0.0)
        return "" if isinstance(beat, int | float) and 0 <= beat < 1e11 else f"found the beat {beat!r}"

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

    Attributes:
      is_stopping: returns True once the run is asked to stop: then nothing but the end of the context waits.
      has_failed: the store lacks files at the end.
    """

    def __init__(self) -> None:
        self.is_stopping: Callable[[], bool] = never
        self.has_failed = False
        self._folder: Path | None = None
        self._uploading, self._has_ended = threading.Lock(), False
        self._passes = threading.Condition()
        self._asked, self._done = 0, 0  # passes
        self._failure: StoreFailed | None = None  # of the last pass
        self._thread = threading.Thread(target=self._work, name="fr3e-mirror", daemon=True)

    def open(self, address: str, folder: Path, resume: bool) -> None:
        """Begin to mirror ``folder``, the working copy. To resume, it is brought to the state of the store.

        It is left as it is where it began from that very state: then it holds all of it, and perhaps more, which a kill
        kept from the store. Damaged checkpoints of the store are passed over where a whole one is there.

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
        store.check_writable()
        if not is_current:  # another machine went on, or the run was deleted from the store
            _move_aside(folder)
            CopyRecord(folder).write("gone")  # until all is there, the folder is at no state of the store
            fetch_run(store, run.files, folder)
            record = CopyRecord(folder)
        record.address = store.address
        record.write(run.token)
        self._store, self._run, self._record, self._folder = store, run, record, folder
        left_over = store.below(CHECKPOINTS.rstrip("/"))  # by an upload that was killed
        store.delete(name for name in left_over if name not in run.files)
        self._thread.start()

    def complete(self) -> None:
        """Wait until the store holds all that is in the folder now; say so if that takes time.

        Raises:
          StoreFailed: it cannot be uploaded; the working copy has it.
        """
        if self._folder is None:
            return
        self._store.tries = TRIES
        asked, notice = self._ask_for_pass(), time.monotonic() + NOTICE_SECONDS
        if not self._has_passed(asked, lambda: time.monotonic() > notice):
            print(f"fr3e: uploading; {self._way_on()}; Ctrl-C ends the wait", file=sys.stderr, flush=True)
            self._has_passed(asked)
        if self._failure:
            self.has_failed = True
            raise StoreFailed(f"{self._failure}; nothing is lost: {self._way_on()}") from self._failure

    def keep_up(self) -> None:
        """`complete` while the store can be used; where it fails, or the run is asked to stop, go on without it.

        Raises:
          StoreFailed: the run in the store is no longer this one.
        """
        if self._folder is not None and not self._failure:
            self._has_passed(self._ask_for_pass(), lambda: self.is_stopping())
        if isinstance(self._failure, RunGone):
            self.complete()

    def _ask_for_pass(self) -> int:
        with self._passes:
            self._asked += 1
            self._passes.notify_all()
            return self._asked

    def _has_passed(self, asked: int, is_enough: Callable[[], bool] = never) -> bool:
        """Wait for the pass of this number, or until it ``is_enough``; return whether it has ended."""
        with self._passes:
            while self._done < asked and not is_enough():
                self._passes.wait(_GLANCE)
            return self._done >= asked

    def _work(self) -> None:
        pause = EVERY_SECONDS
        while not self._has_ended or self._done < self._asked:
            with self._passes:
                self._passes.wait_for(lambda: self._asked > self._done, pause)
                asked = self._asked
            failure = self._try()
            if failure and not self._failure and not self._has_ended:
                print(f"fr3e: {failure}; the run goes on, and the upload is tried again", file=sys.stderr, flush=True)
            if self._failure and not failure:
                print(f"fr3e: {self._store.address} has all files again", file=sys.stderr, flush=True)
            pause = min(2 * pause, LONGEST_PAUSE) if failure else EVERY_SECONDS
            self._store.tries = 1 if failure else TRIES
            with self._passes:
                self._done, self._failure = asked, failure
                self._passes.notify_all()

    def _try(self) -> StoreFailed | None:
        """Upload what has changed; return the reason why that failed."""
        with self._uploading:
            try:
                self.upload()
            except StoreFailed as error:
                return error
            except Exception as error:
                return StoreFailed(f"{self._store.address} cannot be written: {type(error).__name__}: {error}")
        return None

    def _way_on(self) -> str:
        """The number of files that the store lacks, their folder, and the command that uploads them."""
        folder, record = self._folder, self._record.files
        assert folder is not None
        behind = [name for name in mirrored_files(folder) if _state(folder / name) != record.get(name)]
        steps = sorted({checkpoint_of(name).removeprefix(CHECKPOINTS).rstrip("/") for name in behind} - {""})
        lacks = f"{len(behind)} file{'s' * (len(behind) != 1)}" + (
            f" and the checkpoints {', '.join(steps)}" if steps else ""
        )
        return (
            f"the files are in {folder}; {self._store.address} lacks {lacks}; continue on this machine with --resume "
            f"{self._store.address}, which uploads them"
        )

    def upload(self) -> None:
        """Put into the store what has changed, and name it there; then delete there what the folder lacks."""
        folder, store, files = self._folder, self._store, self._record.files
        assert folder is not None
        there = MirroredRun.read(store)
        if (there.token if there else "") not in self._record.tokens:
            raise RunGone(
                f"{store.address} was {'taken over by another run' if there else 'deleted'}; nothing was written there "
                "since. Stop that run, then continue from the last checkpoint with --resume"
            )
        states = {name: _state(folder / name) for name in mirrored_files(folder)}
        gone = files.keys() - states.keys()
        changed = [name for name, state in states.items() if state is None or state != files.get(name)]
        if broken := {checkpoint_of(name) for name in changed if states[name]} & self._run.checkpoints():
            self._commit({name: state for name, state in self._run.files.items() if checkpoint_of(name) not in broken})
        missing = {checkpoint_of(name) for name in gone}  # checkpoints that were removed, perhaps not wholly yet
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
        if self._folder is None:
            return
        has_failed, self._has_ended = self.has_failed, True
        if kind is not None and not issubclass(kind, Exception):
            self._say_incomplete()
            return
        try:
            self.complete()
            self._thread.join()
            self._commit(self._run.files, has_ended=True)
        except StoreFailed:
            if kind is None and not has_failed:
                raise
        except KeyboardInterrupt:
            self._say_incomplete()
            raise

    def _say_incomplete(self) -> None:
        print(f"fr3e: the upload was not completed; {self._way_on()}", file=sys.stderr, flush=True)


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


def fetch_run(store: Store, files: Mapping[str, FileState], folder: Path) -> None:
    """`fetch` files of a run. A damaged checkpoint is passed over, with a line, and so is a record that is missing.

    Raises:
      StoreFailed: the settings or all checkpoints are damaged, or the store cannot be read.
    """
    while True:
        try:
            return fetch(store, files, folder, fixed=CHECKPOINTS)
        except FileDamaged as error:
            damaged = checkpoint_of(error.name) or error.name
            rest = {name: state for name, state in files.items() if not name.startswith(damaged)}
            if damaged == "config.yaml":
                raise
            if damaged.startswith(CHECKPOINTS) and not any(map(checkpoint_of, rest)):
                raise StoreFailed(
                    f"{error}; no other checkpoint is there: start a new run at another address"
                ) from error
            print(f"fr3e: {error}; going on without {damaged}", file=sys.stderr, flush=True)
            shutil.rmtree(folder / damaged, ignore_errors=True)
            files = rest


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
