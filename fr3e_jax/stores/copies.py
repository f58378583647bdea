"""Folders of this machine that stand for an address: working copies of runs, copies to read, fetched files.

All lie below the folder that the environment variable ``FR3E_STORE_CACHE`` names (``~/.cache/fr3e_jax/stores``).
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fr3e_jax.stores.manifest import CHECKPOINTS, Content, Manifest, checkpoint_of, content_of_file
from fr3e_jax.stores.objects import Store, StoreFailed

Use = Literal["runs", "read", "fetched"]
RECORD = ".fr3e_copy.json"
IN_PARTS = ".orbax-checkpoint-tmp-fetched"  # Orbax takes a folder of such a name for an unfinished checkpoint


class Known(NamedTuple):
    """The content of a file when it had this size and time of change."""

    size: int
    mtime_ns: int
    content: Content


class Record:
    """What a copy knows: its address, the states of the store that it began from, and the content of its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address, self.generations, self.known = "", [""], dict[str, Known]()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or a torn one
            found = json.loads((folder / RECORD).read_bytes())
            known = {n: Known(size, time, Content(*content)) for n, (size, time, content) in found["known"].items()}
            self.address, self.generations, self.known = found["address"], found["generations"], known

    def write(self, *generations: str) -> None:
        self.generations = list(generations)
        content: dict[str, Any] = {"address": self.address, "generations": self.generations, "known": self.known}
        temporary = self.folder / f"{RECORD}.tmp"
        temporary.write_bytes(json.dumps(content).encode())
        os.replace(temporary, self.folder / RECORD)

    def content(self, name: str) -> Content:
        """Size and checksum of a file; it is read only if it has changed since the last time."""
        path = self.folder / name
        state = path.stat()
        found = self.known.get(name)
        if found is None or (found.size, found.mtime_ns) != (state.st_size, state.st_mtime_ns):
            found = self.known[name] = Known(state.st_size, state.st_mtime_ns, content_of_file(path))
        return found.content


def cache_root() -> Path:
    return Path(os.environ.get("FR3E_STORE_CACHE") or "~/.cache/fr3e_jax/stores").expanduser()


def copy_of(address: str, use: Use) -> Path:
    """The folder of this machine for an address: ``runs/s3/bucket/name``."""
    scheme, _, rest = address.rstrip("/").partition("://")
    parts = [part for part in rest.split("/") if part not in ("", ".", "..")]
    return cache_root().joinpath(use, scheme, *parts)


def address_of(folder: Path) -> str:
    """The address whose working copy a folder is, else the folder itself, as text."""
    return Record(folder).address or str(folder)


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of this machine change a copy at a time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def bring_down(store: Store, manifest: Manifest, folder: Path, *, wanted: Callable[[str], bool], exact: bool) -> None:
    """Fetch the files of a run that are ``wanted`` and that ``folder`` lacks or has otherwise.

    A checkpoint appears in the folder when all its files are there and their checksums are right. Checkpoints that the
    manifest lacks are removed, and so are files that were fetched once; with ``exact``, every file that it lacks.

    Raises:
      StoreFailed: the store lacks a file of its manifest, or a checkpoint is damaged there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(folder)
    record.address = store.address if exact else ""
    record.write("gone")  # until all is there, the folder is at no state of the store
    _remove(folder, record, manifest, exact)
    for name, content in manifest.files.items():
        if wanted(name) and not checkpoint_of(name) and not _is_there(record, name, content):
            _fetch(store, name, folder / name)
    for step, names in manifest.steps().items():
        if wanted(step) and not all(_is_there(record, name, manifest.files[name]) for name in names):
            _fetch_checkpoint(store, manifest, folder, step, names)
    for name in manifest.files:
        if (folder / name).is_file():
            record.content(name)
    record.write(manifest.generation)


def _fetch_checkpoint(store: Store, manifest: Manifest, folder: Path, step: str, names: list[str]) -> None:
    place = folder / step
    parts = place.with_name(place.name + IN_PARTS)
    shutil.rmtree(parts, ignore_errors=True)
    for name in names:
        path = parts / name.removeprefix(step)
        _fetch(store, name, path)
        if content_of_file(path) != manifest.files[name]:
            raise StoreFailed(f"{store.address}/{name} is not as it was written: delete {step} there, or restore it")
    shutil.rmtree(place, ignore_errors=True)
    parts.rename(place)


def _fetch(store: Store, name: str, path: Path) -> None:
    try:
        store.download(name, path)
    except FileNotFoundError:
        raise StoreFailed(f"{store.address}/{name} is missing, and the run's manifest names it: restore it") from None


def _is_there(record: Record, name: str, content: Content) -> bool:
    return (record.folder / name).is_file() and record.content(name) == content


def _remove(folder: Path, record: Record, manifest: Manifest, exact: bool) -> None:
    for name in mirrored_files(folder):
        if name not in manifest.files and (exact or checkpoint_of(name) or name in record.known):
            (folder / name).unlink()
            record.known.pop(name, None)
    kept = manifest.steps()
    for place in (folder / "checkpoints").glob("*"):
        if f"checkpoints/{place.name}/" not in kept:
            shutil.rmtree(place, ignore_errors=True)


def mirrored_files(folder: Path) -> list[str]:
    """The files of a run's folder that belong into the store, checkpoints first; none that is still being written.

    Checkpoints are looked for first, too: what the run's processes wrote before one of them is then found after it.
    """
    found: list[str] = []
    for place, folders, files in itertools.chain(os.walk(folder / CHECKPOINTS), os.walk(folder)):
        inside = Path(place).relative_to(folder).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        folders[:] = [one for one in folders if ".orbax-checkpoint-tmp" not in one and not one.startswith(".")]
        if not prefix and CHECKPOINTS.rstrip("/") in folders:
            folders.remove(CHECKPOINTS.rstrip("/"))
        # Other hidden files are locks, records and half of a write.
        found += [prefix + one for one in files if not one.startswith(".")]
    return sorted(found, key=lambda name: (not name.startswith(CHECKPOINTS), name))
