"""Models and datasets in a store: fetched into a folder of this machine, and again when size or tag has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fr3e_jax.stores.copies import copy_of, one_at_a_time
from fr3e_jax.stores.objects import ObjectState, Store, join

_STATES = "states"


def fetched_folder(address: str) -> Path:
    """The folder with all objects below an address; objects that are gone are removed from it.

    Raises:
      FileNotFoundError: there is nothing below the address.
      StoreFailed: the store cannot be read.
    """
    store = Store(address)
    found = {name: state for name, state in store.below().items() if name and not name.endswith("/")}
    if not found:
        raise FileNotFoundError(f"{address} holds nothing; expected the files of a folder there")
    folder = copy_of(address, "fetched")
    with one_at_a_time(folder):
        _bring(store, found, folder)
        for path in [path for path in folder.rglob("[!.]*") if path.is_file()]:
            if path.relative_to(folder).as_posix() not in found:
                path.unlink()
    return folder


def fetched_file(address: str) -> Path:
    """The file of one object.

    Raises:
      FileNotFoundError: there is no such object.
      StoreFailed: the store cannot be read.
    """
    parent, _, name = address.rstrip("/").rpartition("/")
    store = Store(parent)
    state = store.state(name)
    if state is None:
        raise FileNotFoundError(f"{address} does not exist")
    folder = copy_of(parent, "fetched")
    with one_at_a_time(folder):
        _bring(store, {name: state}, folder)
    return folder / name


def fetched_files(pattern: str) -> list[Path]:
    """The files of the objects that a glob matches, in order; none if it matches nothing."""
    parts = pattern.split("/")
    fixed = next((i for i, part in enumerate(parts) if set(part) & set("*?[")), len(parts) - 1)
    parent, rest = "/".join(parts[:fixed]), "/".join(parts[fixed:])
    return [fetched_file(join(parent, name)) for name in Store(parent).matching(rest)]


def _bring(store: Store, wanted: Mapping[str, ObjectState], folder: Path) -> None:
    """Fetch the objects whose file is missing, or whose size or tag is not as it was when it was fetched."""
    record = folder.with_name(f".{folder.name}.{_STATES}.json")
    try:
        known = {name: ObjectState(*state) for name, state in json.loads(record.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        known = {}
    for name, state in wanted.items():
        path = folder / name
        if path.is_file() and path.stat().st_size == state.size and known.get(name) == state:
            continue
        store.download(name, path)
        if (size := path.stat().st_size) != state.size:
            path.unlink()
            raise OSError(f"{join(store.address, name)} has {state.size} bytes, and {size} came; try again")
        known[name] = state
        temporary = record.with_name(f"{record.name}.tmp")
        temporary.write_text(json.dumps(known))
        temporary.replace(record)
