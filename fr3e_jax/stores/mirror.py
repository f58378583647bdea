"""The mirror of a run: its folder here, a working copy, is kept alike with its address in an object store.

A run writes its files into the working copy as any run does. A thread puts whole objects into the store: what has
changed, then the manifest that names it all. A checkpoint is in the manifest only when all its objects are there.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime
from pathlib import Path

from fr3e_jax.stores.copies import Record, bring_down, copy_of, mirrored_files
from fr3e_jax.stores.manifest import CHECKPOINTS, Manifest, checkpoint_of
from fr3e_jax.stores.objects import Store, StoreFailed
from fr3e_jax.stores.writer import StoreInUse, StoreWriter

LOOK_SECONDS = 2.0  # between two looks for a new checkpoint
EVERY_SECONDS = 30.0  # between two uploads without one
TRIES = 3
_SMALL = 2**25  # bytes; a file up to this size is read once, and may grow meanwhile


class Mirror:
    """Uploads in the background; does nothing before `open`.

    `complete` returns when all that was in the folder at the call is in the store. Leaving the context completes it,
    too, unless something other than an ordinary error ends the run.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._asked, self._done = 0, 0  # calls of `complete`, and those that the thread has answered
        self._failure, self._told, self._ended = "", False, False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="fr3e-mirror", daemon=True)

    def claim(self, address: str) -> None:
        """Become the writer of ``address``.

        Raises:
          StoreInUse: another run writes there.
          StoreFailed: the store cannot be used.
        """
        self._store = Store(address)
        self._writer = StoreWriter(self._store)
        self._writer.acquire()
        self._manifest = Manifest.read(self._store)

    def open(self, folder: Path, resume: bool) -> None:
        """Begin to mirror ``folder``, the working copy. To resume, it is brought to the state of the store.

        It is left as it is where it began from that very state: then it holds all of it, and perhaps more, which a kill
        kept from the store.

        Raises:
          FileExistsError: a run is there, and none is resumed.
          FileNotFoundError: no run is there to resume.
          StoreFailed: the store cannot be used.
        """
        store, manifest, record = self._store, self._manifest, Record(folder)
        is_current = (manifest.generation if manifest else "") in record.generations
        if resume:
            if manifest is None and not (is_current and holds_files(folder)):
                raise FileNotFoundError(f"{store.address} holds no run; expected the address of an earlier run")
            if manifest is not None and not is_current:
                bring_down(store, manifest, folder, wanted=lambda name: True, exact=True)
                record = Record(folder)
        elif manifest is not None or (is_current and holds_files(folder)):
            where = "" if manifest else f" (not yet in the store; its files are in {folder})"
            raise FileExistsError(
                f"runtime.run_dir={store.address} already holds a run{where}; expected a new address: continue that "
                "run with --resume, or choose another runtime.run_dir"
            )
        elif holds_files(folder):
            _move_aside(folder)  # its run was deleted from the store
            record = Record(folder)
        record.address = store.address
        record.write(*([manifest.generation] if manifest else [""]))
        self._manifest, self._record, self._folder = manifest or Manifest(), record, folder
        self._drop_leftovers()
        self._thread.start()

    def complete(self) -> None:
        """Wait until the store holds all that is in the folder now.

        Raises:
          StoreFailed: it cannot be uploaded; the working copy has it.
          StoreInUse: another run took this one's place.
        """
        if self._folder is None:
            return
        with self._change:
            self._asked += 1
            mine = self._asked
            self._change.notify_all()
            self._change.wait_for(lambda: self._done >= mine)
            failure = self._failure
        if failure:
            self._told = True
            raise StoreFailed(
                f"{failure}; nothing is lost: the files are in {self._folder}; continue on this machine with "
                f"--resume {self._store.address}"
            )

    def _work(self) -> None:
        last, steps = 0.0, set[str]()
        while True:
            with self._change:
                self._change.wait_for(lambda: self._ended or self._asked > self._done, LOOK_SECONDS)
                if self._ended:
                    return
                asked, wanted = self._asked, self._asked > self._done
            found = self._steps_here()
            if not wanted and found == steps and time.monotonic() < last + EVERY_SECONDS:
                continue
            failure = self._try()  # one that nobody waits for is tried again
            last, steps = time.monotonic(), found
            with self._change:
                self._failure, self._done = failure, asked
                self._change.notify_all()

    def _try(self) -> str:
        """Upload what has changed; the reason why that failed several times, or ""."""
        for pause in [*range(1, TRIES), 0]:
            try:
                self.upload()
            except StoreInUse as error:
                return str(error)
            except Exception as error:
                reason = str(error) if isinstance(error, StoreFailed) else f"{type(error).__name__}: {error}"
                if not pause or self._ended:
                    return reason
                time.sleep(pause)
            else:
                break
        return ""

    def upload(self) -> None:
        """Put into the store what has changed, then the manifest; then delete there what the folder lacks."""
        folder, store = self._folder, self._store
        assert folder is not None
        self._writer.check()
        names = mirrored_files(folder)
        before = set(self._manifest.files)
        if broken := self._changed_checkpoints(names):  # readers must not trust them while they are replaced
            self._commit(self._manifest.without(broken))
        new = self._manifest.without(())
        # The names were listed first, and checkpoints are put last: what a checkpoint claims to be on disk is put.
        for name in sorted(names, key=lambda name: name.startswith(CHECKPOINTS)):
            try:
                content = self._record.content(name)
                if new.files.get(name) != content:
                    self._put(name)
                    new.files[name] = content
            except FileNotFoundError:  # removed meanwhile
                new = new.without({checkpoint_of(name)})
                new.files.pop(name, None)
        for name in new.files.keys() - set(names):
            del new.files[name]
            self._record.known.pop(name, None)
        if new.files != self._manifest.files:
            self._writer.check()
            self._commit(new)
        store.delete(before - self._manifest.files.keys())

    def _put(self, name: str) -> None:
        path = self._folder / name  # type: ignore[operator]
        if path.stat().st_size <= _SMALL:
            self._store.write(name, path.read_bytes())
        else:
            self._store.upload(name, path)

    def _commit(self, manifest: Manifest) -> None:
        self._record.write(self._manifest.generation, manifest.generation)
        manifest.write(self._store)
        self._manifest = manifest
        self._record.write(manifest.generation)

    def _changed_checkpoints(self, names: list[str]) -> set[str]:
        """Checkpoints of the manifest that have lost or changed a file here; readers must no longer trust them."""
        here = set(names)
        return {
            step
            for step, files in self._manifest.steps().items()
            if any(name not in here or self._record.content(name) != self._manifest.files[name] for name in files)
        }

    def _steps_here(self) -> set[str]:
        folder = self._folder / CHECKPOINTS  # type: ignore[operator]
        return {place.name for place in folder.iterdir() if place.name.isdecimal()} if folder.is_dir() else set()

    def _drop_leftovers(self) -> None:
        """Delete objects of checkpoints whose upload was killed."""
        found = self._store.below(CHECKPOINTS.rstrip("/"))
        self._store.delete(name for name in found if name not in self._manifest.files)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        told = self._told
        try:
            if kind is None or issubclass(kind, Exception):
                self.complete()
        except StoreFailed:
            if kind is None and not told:
                raise
        finally:
            with self._change:
                self._ended = True
                self._change.notify_all()
            if self._thread.is_alive():
                self._thread.join()
            if hasattr(self, "_writer"):
                self._writer.release()


def _move_aside(folder: Path) -> None:
    """Keep what a folder holds, but for the lock, beside it."""
    aside = folder.with_name(f"{folder.name}.deleted-{datetime.now():%Y%m%d-%H%M%S}")
    aside.mkdir()
    for path in [path for path in folder.iterdir() if path.name != ".lock"]:
        path.rename(aside / path.name)


def holds_files(folder: Path) -> bool:
    """Whether a working copy holds a run."""
    return (folder / "config.yaml").exists()


def working_copy(address: str) -> Path:
    """The folder of this machine in which the run at ``address`` works."""
    return copy_of(address, "runs")
