"""Runs in a store for those who read them: copies to read, which are fetched again as far as they have changed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from fr3e_jax.stores.copies import copy_of, updated_copy
from fr3e_jax.stores.mirror import CHECKPOINTS, MirroredRun, fetch_run, holds_files, working_copy
from fr3e_jax.stores.objects import Store, is_remote, join

Place = str | os.PathLike
"""A folder, or an address in an object store as text."""

_HALF_AN_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/([^/].*)")  # two letters or more: no drive
_DEPTH = 4  # folders below an address that is searched for runs


def run_folder(location: Place, *, checkpoints: bool = False, rollouts: bool = True) -> Path:
    """The folder of a run that is only read: the folder itself, or a copy of what is at an address now.

    A run of this machine that was killed before its first upload is read in its working copy.

    Raises:
      FileNotFoundError: an address holds no run, or has lost a slash: a `Path` of one has one slash less.
      StoreFailed: the store cannot be read.
    """
    if not is_remote(location):
        if match := _HALF_AN_ADDRESS.fullmatch(str(location)):
            scheme, rest = match.groups()
            raise FileNotFoundError(
                f"{location} has one slash after {scheme}:; expected an address such as {scheme}://{rest}, as a text"
            )
        return Path(location).expanduser()
    address = str(location)
    store, folder = Store(address), copy_of(address, "read")
    if (run := MirroredRun.read(store)) is None:
        if holds_files(working_copy(address)):
            return working_copy(address)
        raise FileNotFoundError(f"{address} holds no run; expected the address of an earlier run (see fr3e runs)")
    unread = tuple([CHECKPOINTS] * (not checkpoints) + ["rollouts/"] * (not rollouts))
    with updated_copy(folder, run.files):
        files = {name: state for name, state in run.files.items() if not name.startswith(unread)}
        fetch_run(store, files, folder)
        lock = folder / ".lock"  # says who writes the run, as the lock file of a folder does
        lock.write_text(json.dumps(run.writer))
        os.utime(lock, (run.writer.get("beat", 0.0),) * 2)
    return folder


def holds_run(location: Place) -> bool:
    """True if a run was started there."""
    if not is_remote(location):
        return holds_files(Path(location).expanduser())
    return MirroredRun.read(Store(str(location))) is not None or holds_files(working_copy(str(location)))


def has_checkpoint(address: str) -> bool:
    run = MirroredRun.read(Store(address))
    return run is not None and bool(run.checkpoints())


def runs_below(address: str, depth: int = _DEPTH) -> list[str]:
    """The addresses of the runs at and below an address, in the order of their names."""
    store = Store(address)
    if MirroredRun.read(store) is not None:
        return [address.rstrip("/")]
    below = store.folders() if depth else []
    return [run for name in below for run in runs_below(join(address, name), depth - 1)]


def overview_folder(address: str) -> Path:
    """A folder with copies of all runs below an address, without rollouts and checkpoints."""
    for run in runs_below(address):
        run_folder(run, rollouts=False)
    return copy_of(address, "read")
