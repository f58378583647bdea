"""Models and datasets in a store: fetched into a folder of this machine, and again when size or tag has changed."""

from __future__ import annotations

from pathlib import Path

from fr3e_jax.stores.copies import CopyRecord, copy_of, exclusively, fetch, forget
from fr3e_jax.stores.objects import Store, join


def fetched_folder(address: str) -> Path:
    """The folder with all objects below an address; objects that are gone are removed from it.

    Raises:
      FileNotFoundError: there is nothing below the address.
      StoreFailed: the store cannot be read.
    """
    store, folder = Store(address), copy_of(address, "fetched")
    objects = {name: state for name, state in store.below().items() if name and not name.endswith("/")}
    if not objects:
        raise FileNotFoundError(f"{address} holds nothing; expected the files of a folder there")
    with exclusively(folder):
        fetch(store, objects, folder)
        forget(folder, (name for name in CopyRecord(folder).files if name not in objects))
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
    with exclusively(folder):
        fetch(store, {name: objects[name]}, folder)
    return folder / name


def fetched_files(pattern: str) -> list[Path]:
    """The files of the objects that a glob matches, in order; none if it matches nothing."""
    names = pattern.split("/")
    fixed = next((i for i, name in enumerate(names) if set(name) & set("*?[")), len(names) - 1)
    parent, rest = "/".join(names[:fixed]), "/".join(names[fixed:])
    return [fetched_file(join(parent, name)) for name in Store(parent).matching(rest)]
