"""Runs in a store for those who read them: copies to read, which are fetched again as far as they have changed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from fr3e_jax.stores.copies import bring_down, copy_of, one_at_a_time
from fr3e_jax.stores.manifest import CHECKPOINTS, Manifest
from fr3e_jax.stores.mirror import holds_files, working_copy
from fr3e_jax.stores.objects import Store, is_remote, join
from fr3e_jax.stores.writer import WRITER, writer_of

Place = str | os.PathLike
"""A folder, or an address in an object store as text."""

_HALF_AN_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/([^/].*)")  # two letters or more: no drive
_DEPTH = 4  # folders below an address that is searched for runs


def run_folder(place: Place, *, checkpoints: bool = False, rollouts: bool = True) -> Path:
    """The folder of a run that is only read: the folder itself, or a copy of what is at an address now.

    Raises:
      FileNotFoundError: an address holds no run, or has lost a slash: a `Path` of one has one slash less.
      StoreFailed: the store cannot be read.
    """
    if not is_remote(place):
        if match := _HALF_AN_ADDRESS.fullmatch(str(place)):
            scheme, rest = match.groups()
            raise FileNotFoundError(
                f"{place} has one slash after {scheme}:; expected an address such as {scheme}://{rest}, as a text"
            )
        return Path(place).expanduser()
    address = str(place)
    store = Store(address)
    folder = copy_of(address, "read")
    manifest = Manifest.read(store)
    if manifest is None:
        raise FileNotFoundError(f"{address} holds no run; expected the address of an earlier run (see fr3e runs)")
    unwanted = tuple([CHECKPOINTS] * (not checkpoints) + ["rollouts/"] * (not rollouts))
    with one_at_a_time(folder):
        bring_down(store, manifest, folder, wanted=lambda name: not name.startswith(unwanted), exact=False)
        _copy_sign_of_life(store, folder)
    return folder


def settings_folder(place: Place) -> Path:
    """The folder that has the settings of a run: of one in a store, without rollouts and checkpoints.

    A run of this machine that was killed before its first upload is found in its working copy.
    """
    if is_remote(place) and is_only_here(str(place)):
        return working_copy(str(place))
    return run_folder(place, rollouts=False)


def is_only_here(address: str) -> bool:
    """Whether the store has no run there, but this machine has one that was not uploaded yet."""
    return Manifest.read(Store(address)) is None and holds_files(working_copy(address))


def holds_run(place: Place) -> bool:
    """Whether a run was started there."""
    if not is_remote(place):
        return holds_files(Path(place).expanduser())
    return Manifest.read(Store(str(place))) is not None or holds_files(working_copy(str(place)))


def _runs_below(address: str, depth: int = _DEPTH) -> list[str]:
    """The addresses of the runs at and below an address, in the order of their names."""
    store = Store(address)
    if Manifest.read(store) is not None:
        return [address.rstrip("/")]
    below = store.folders() if depth else []
    return [found for name in below for found in _runs_below(join(address, name), depth - 1)]


def newest_first(address: str, name: str) -> list[str]:
    """The addresses of the runs of a recipe's name right below an address: NAME-DATE-TIME."""
    pattern = re.compile(r"-\d{8}-\d{6}(-\d+)?")
    names = [found for found in Store(address).folders() if pattern.fullmatch(found.removeprefix(name))]
    addresses = (join(address, found) for found in sorted(names, reverse=True))
    return [found for found in addresses if Manifest.read(Store(found)) is not None]


def has_checkpoint(address: str) -> bool:
    manifest = Manifest.read(Store(address))
    return manifest is not None and bool(manifest.steps())


def overview_folder(address: str) -> Path:
    """A folder with copies of all runs below an address, without rollouts and checkpoints."""
    for run in _runs_below(address):
        run_folder(run, rollouts=False)
    return copy_of(address, "read")


def _copy_sign_of_life(store: Store, folder: Path) -> None:
    """Let the copy say who writes the run, as the lock file of a folder does."""
    path, found = folder / WRITER, writer_of(store)
    if found:
        path.write_text(json.dumps(found))
        os.utime(path, (found.get("beat", 0.0),) * 2)
    else:
        path.unlink(missing_ok=True)
