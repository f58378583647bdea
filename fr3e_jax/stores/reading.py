"""Runs in a store for those who read them: copies to read, which are fetched again as far as they have changed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from fr3e_jax.stores.copies import CopyRecord, copy_of, exclusively, fetch, forget
from fr3e_jax.stores.mirror import CHECKPOINTS, MirroredRun, holds_files, working_copy
from fr3e_jax.stores.objects import Store, is_remote, join

Place = str | os.PathLike
"""A folder, or an address in an object store as text."""

_HALF_AN_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/([^/].*)")  # two letters or more: no drive
_DEPTH = 4  # folders below an address that is searched for runs


def run_folder(location: Place, *, checkpoints: bool = False, rollouts: bool = True) -> Path:
    """The folder of a run that is only read: the folder itself, or a copy of what is at an address now.

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
        raise FileNotFoundError(f"{address} holds no run; expected the address of an earlier run (see fr3e runs)")
    unwanted = tuple([CHECKPOINTS] * (not checkpoints) + ["rollouts/"] * (not rollouts))
    with exclusively(folder):
        folder.mkdir(parents=True, exist_ok=True)
        forget(folder, (name for name in CopyRecord(folder).files if name not in run.files))
        files = {name: state for name, state in run.files.items() if not name.startswith(unwanted)}
        fetch(store, files, folder, fixed=CHECKPOINTS)
        _copy_sign_of_life(run.writer, folder)
    return folder


def settings_folder(location: Place) -> Path:
    """The folder that has the settings of a run: of one in a store, without rollouts and checkpoints.

    A run of this machine that was killed before its first upload is found in its working copy.
    """
    if (
        is_remote(location)
        and MirroredRun.read(Store(str(location))) is None
        and holds_files(working_copy(str(location)))
    ):
        return working_copy(str(location))
    return run_folder(location, rollouts=False)


def holds_run(location: Place) -> bool:
    """True if a run was started there."""
    if not is_remote(location):
        return holds_files(Path(location).expanduser())
    return MirroredRun.read(Store(str(location))) is not None or holds_files(working_copy(str(location)))


def newest_first(address: str, name: str) -> list[str]:
    """The addresses of the runs of a recipe's name right below an address: NAME-DATE-TIME."""
    pattern = re.compile(r"-\d{8}-\d{6}(-\d+)?")
    names = [folder for folder in Store(address).folders() if pattern.fullmatch(folder.removeprefix(name))]
    addresses = (join(address, folder) for folder in sorted(names, reverse=True))
    return [run for run in addresses if MirroredRun.read(Store(run)) is not None]


def has_checkpoint(address: str) -> bool:
    run = MirroredRun.read(Store(address))
    return run is not None and bool(run.checkpoints())


def overview_folder(address: str) -> Path:
    """A folder with copies of all runs below an address, without rollouts and checkpoints."""
    for run in _runs_below(address):
        run_folder(run, rollouts=False)
    return copy_of(address, "read")


def _runs_below(address: str, depth: int = _DEPTH) -> list[str]:
    """The addresses of the runs at and below an address, in the order of their names."""
    store = Store(address)
    if MirroredRun.read(store) is not None:
        return [address.rstrip("/")]
    below = store.folders() if depth else []
    return [run for name in below for run in _runs_below(join(address, name), depth - 1)]


def _copy_sign_of_life(writer: dict[str, Any], folder: Path) -> None:
    """Let the copy say who writes the run, as the lock file of a folder does."""
    lock = folder / ".lock"
    lock.write_text(json.dumps(writer))
    os.utime(lock, (writer.get("beat", 0.0),) * 2)
