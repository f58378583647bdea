"""Folders of this machine that stand for an address: working copies of runs, copies to read, fetched files.

All lie below the folder that the environment variable ``FR3E_STORE_CACHE`` names (``~/.cache/fr3e_jax/stores``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from fr3e_jax.stores.objects import FileState, Store, StoreFailed, join

RECORD = ".fr3e_copy.json"


class FileDamaged(StoreFailed):
    """An object is missing, or not as its state says; ``name`` is its file's."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def is_state(value: object) -> bool:
    """Return whether a value is the state of a file."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    return isinstance(value[0], int) and value[0] >= 0 and isinstance(value[1], int | str)


class CopyRecord:
    """The facts that a copy keeps about itself.

    Attributes:
      address: of the run whose working copy the folder is; else "".
      tokens: states of the store (`fr3e_jax.stores.mirror.MirroredRun`) from which a working copy may have begun.
      files: the states of files that were fetched or uploaded.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD
        self.address, self.tokens, self.files = "", [""], dict[str, FileState]()
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
        ):  # none, or a torn one
            content = json.loads(self.path.read_bytes())
            if all(is_state(state) for state in content["files"].values()):
                self.address, self.tokens, self.files = (
                    str(content["address"]),
                    list(content["tokens"]),
                    content["files"],
                )

    def write(self, *tokens: str) -> None:
        self.tokens = list(tokens) or self.tokens
        content: dict[str, Any] = {"address": self.address, "tokens": self.tokens, "files": self.files}
        temporary = self.path.with_name(f"{RECORD}.tmp")
        temporary.write_bytes(json.dumps(content).encode())
        os.replace(temporary, self.path)


def copy_of(address: str, use: Literal["runs", "read", "fetched"]) -> Path:
    """The folder of this machine for an address: ``runs/s3/bucket/name``."""
    scheme, _, rest = address.rstrip("/").partition("://")
    names = [name for name in rest.split("/") if name not in ("", ".", "..")]
    root = Path(os.environ.get("FR3E_STORE_CACHE") or "~/.cache/fr3e_jax/stores").expanduser()
    return root.joinpath(use, scheme, *names)


def address_of(folder: Path) -> str:
    """The address whose working copy a folder is, else the folder itself, as text."""
    return CopyRecord(folder).address or str(folder)


def fetch(store: Store, files: Mapping[str, FileState], folder: Path, *, fixed: str = "") -> None:
    """Fetch the files that the folder lacks, or whose state is not as it was at the last fetch.

    Args:
      store: holds the files.
      files: their states; a time of change is given to the copy, too.
      folder: gets them.
      fixed: beginning of the names of files that cannot grow meanwhile: they must have the size of their state.

    Raises:
      FileDamaged: a file is not in the store, or not as its state says.
      StoreFailed: the store cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = CopyRecord(folder)
    for name, state in files.items():
        path = folder / name
        if path.is_file() and record.files.get(name) == state:
            continue
        try:
            store.download(name, path, state[0])
        except FileNotFoundError:
            raise FileDamaged(f"{store.address}/{name} is missing: restore it", name) from None
        if name.startswith(fixed) and (size := path.stat().st_size) != state[0]:
            path.unlink()
            message = f"{store.address}/{name} is not as it was written: {state[0]} bytes, and {size} came"
            raise FileDamaged(message, name)
        if isinstance(state[1], int):
            os.utime(path, ns=(state[1], state[1]))
        record.files[name] = state
        record.write()


@contextlib.contextmanager
def updated_copy(folder: Path, files: Mapping[str, FileState] | None = None) -> Iterator[None]:
    """A block in which this process alone changes a copy; first, fetched files that ``files`` lacks are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        record = CopyRecord(folder)
        for name in record.files.keys() - files.keys() if files is not None else ():
            (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty; an empty folder of a checkpoint would count as one
                for parent in Path(name).parents[:-1]:
                    (folder / parent).rmdir()
            del record.files[name]
        record.write()
        yield


def fetched_folder(address: str) -> Path:
    """The folder with all objects below an address, such as a model; objects that are gone are removed from it.

    Files are fetched again when their size or tag has changed.

    Raises:
      FileNotFoundError: there is nothing below the address.
      StoreFailed: the store cannot be read.
    """
    store, folder = Store(address), copy_of(address, "fetched")
    objects = {name: state for name, state in store.below().items() if name and not name.endswith("/")}
    if not objects:
        raise FileNotFoundError(f"{address} holds nothing; expected the files of a folder there")
    with updated_copy(folder, objects):
        fetch(store, objects, folder)
    return folder


def fetched_file(address: str) -> Path:
    """The file of one object.

    Raises:
      FileNotFoundError: there is no such object.
      StoreFailed: the store cannot be read.
    """
    parent, _, name = address.rstrip("/").rpartition("/")
    store, folder = Store(parent), copy_of(parent, "fetched")
    objects = store.below(name)
    if name not in objects:
        raise FileNotFoundError(f"{address} does not exist")
    with updated_copy(folder):
        fetch(store, {name: objects[name]}, folder)
    return folder / name


def fetched_files(pattern: str) -> list[Path]:
    """The files of the objects that a glob matches, in order; none if it matches nothing."""
    names = pattern.split("/")
    fixed = next((i for i, name in enumerate(names) if set(name) & set("*?[")), len(names) - 1)
    parent, rest = "/".join(names[:fixed]), "/".join(names[fixed:])
    return [fetched_file(join(parent, name)) for name in Store(parent).matching(rest)]
