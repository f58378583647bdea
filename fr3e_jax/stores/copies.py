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

from fr3e_jax.stores.objects import FileState, Store, StoreFailed

RECORD = ".fr3e_copy.json"


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
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # none, or a torn one
            content = json.loads(self.path.read_bytes())
            self.address, self.tokens, self.files = content["address"], content["tokens"], content["files"]

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


@contextlib.contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Let one process of this machine change a copy at a time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def fetch(store: Store, files: Mapping[str, FileState], folder: Path, *, fixed: str = "") -> None:
    """Fetch the files that the folder lacks, or whose state is not as it was at the last fetch.

    Args:
      store: holds the files.
      files: their states.
      folder: gets them.
      fixed: beginning of the names of files that cannot grow meanwhile: they must have the size of their state.

    Raises:
      StoreFailed: a file is not in the store, or not as its state says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = CopyRecord(folder)
    for name, state in files.items():
        path = folder / name
        if path.is_file() and record.files.get(name) == state:
            continue
        try:
            store.download(name, path)
        except FileNotFoundError:
            raise StoreFailed(f"{store.address}/{name} is missing: restore it") from None
        if name.startswith(fixed) and (size := path.stat().st_size) != state[0]:
            path.unlink()
            raise StoreFailed(f"{store.address}/{name} is not as it was written: {state[0]} bytes, and {size} came")
        record.files[name] = state
        record.write()


def forget(folder: Path, names: Iterator[str]) -> None:
    """Remove files that were fetched once."""
    record = CopyRecord(folder)
    for name in list(names):
        (folder / name).unlink(missing_ok=True)
        del record.files[name]
    record.write()
