"""The content of a checkpoint, and how damage of it is recognised.

A checkpoint has arrays by path, and JSON with the host state, the arrays' structure and checksums of both. `content_of`
makes the JSON, `verified_content` and `verify_arrays` check what was read. ``folder`` is always the directory of one
step, ``checkpoints/12``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from fr3e_jax.programs.checksums import checksums
from fr3e_jax.runs.run_directory import CHECKPOINT_FORMAT as FORMAT

ArrayTree = Any
JSON_SCALARS = {str, int, float, bool, type(None)}


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written or read."""


class DamagedCheckpoint(CheckpointFailed, ValueError):
    """The files of a checkpoint are incomplete, unreadable, or changed since they were written."""


class OtherFormat(ValueError):
    """A checkpoint that another version of the package saved in another format."""


def flatten_arrays(arrays: ArrayTree) -> dict[str, Any]:
    """Leaves by path, like ``params/layers/0/kernel``; integer keys, tuples and optax states become path segments.

    Checkpoints store these flat names, because Orbax turns integer keys into strings, and optax's tuples would tie the
    files to one version of optax.

    Raises:
      TypeError: a leaf is not an array.
      ValueError: two leaves have the same path (a dict with the keys 0 and "0").
    """
    flat: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(f"{name} is {leaf!r} ({type(leaf).__name__}); expected an array: put it in the host state")
        if name in flat:
            raise ValueError(f"found two arrays at {name}; expected distinct paths: rename one of the keys")
        flat[name] = leaf
    return flat


def describe(leaf: Any) -> str:
    """Type and shape of an array, like ``float32[2,3]``."""
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def content_of(host: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a checkpoint: host state, structure and checksums of the arrays, and a checksum of itself.

    Raises:
      TypeError: ``host`` would not come back equal from JSON.
    """
    _check_json(host, "host")
    content: dict[str, Any] = {
        "format": FORMAT,
        "host": dict(host),
        "arrays": {name: describe(leaf) for name, leaf in arrays.items()},
        "checksums": checksums(arrays),
    }
    content["checksum"] = checksum_of_json(content)
    return content


def _check_json(value: Any, path: str) -> None:
    """Refuse content that JSON accepts in silence and returns changed: integer keys, tuples, array scalars."""
    if isinstance(value, Mapping):
        bad_keys = [key for key in value if not isinstance(key, str)]
        if bad_keys:
            raise TypeError(f"{path} has the keys {bad_keys[:3]}; expected strings, as JSON has no other keys")
        for key, entry in value.items():
            _check_json(entry, f"{path}[{key!r}]")
    elif isinstance(value, list):
        # Token lists are long: a list of plain scalars is not walked through entry by entry.
        if not set(map(type, value)) <= JSON_SCALARS:
            for index, entry in enumerate(value):
                _check_json(entry, f"{path}[{index}]")
    elif type(value) not in JSON_SCALARS:
        raise TypeError(
            f"{path} is {value!r} ({type(value).__name__}); expected dicts, lists, strings, Python numbers, "
            "booleans or None, which come back from JSON unchanged: convert it"
        )


def checksum_of_json(content: Mapping[str, Any]) -> str:
    """The SHA-256 of JSON content, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def damage_named(folder: Path, item: str) -> Iterator[None]:
    """Turn each error of reading the files of ``item`` into a `DamagedCheckpoint` of one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        raise _damage(folder, item, f"{type(error).__name__}: {reason[:160]}") from error


def _damage(folder: Path, item: str, reason: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"the checkpoint of step {folder.name} is damaged, in {folder / item}: {reason}")


def verified_content(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The JSON that `content_of` made, without its own checksum.

    Raises:
      DamagedCheckpoint: the checksum is wrong, or an entry is missing.
      OtherFormat: the format is another one.
    """
    checksum = content.pop("checksum", None)
    if checksum != checksum_of_json(content):
        raise _damage(folder, "host", "the checksum of the host state is wrong")
    version = content.get("format")
    if version != FORMAT:
        raise OtherFormat(
            f"the checkpoint of step {folder.name} in {folder.parent} cannot be read: found format {version}, expected "
            f"{FORMAT}; finish the run with the version that began it, or let that version write the weights (fr3e "
            "export) and start a new run from them (model.path)"
        )
    return content


def check_structure(folder: Path, stored: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Compare the arrays of the checkpoint in ``folder`` with those that are wanted, by path and `describe`.

    Raises:
      ValueError: they differ; the message lists the differences.
    """
    lines = []
    # Weights first: the optimizer's copies of them repeat the same mismatches.
    for name in sorted(stored.keys() | expected.keys(), key=lambda name: (not name.startswith("params/"), name)):
        if stored.get(name) != expected.get(name):
            lines.append(f"  {name}: found {stored.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}")
    if lines:
        shown = lines[:20] + ([f"  and {len(lines) - 20} more"] if len(lines) > 20 else [])
        raise ValueError(
            f"the checkpoint of step {folder.name} in {folder.parent} is of another model or optimizer; "
            f"{len(lines)} of its arrays differ from the configuration's:\n" + "\n".join(shown) + "\n"
            "resume with the config.yaml of its run, or set another runtime.run_dir"
        )


def verify_arrays(folder: Path, arrays: Mapping[str, Any], saved: Mapping[str, str]) -> None:
    """Compare restored arrays with their ``saved`` checksums.

    Raises:
      DamagedCheckpoint: a checksum differs.
    """
    wrong = sorted(name for name, checksum in checksums(arrays).items() if checksum != saved.get(name))
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise _damage(folder, "arrays", f"the checksum of {wrong[0]}{more} is wrong")


def move_aside(folder: Path) -> Path:
    """Move a damaged step out of the checkpoints, into the run's directory; return its new path."""
    target = folder.parent.parent / f"damaged_checkpoint_{int(folder.name):06d}"
    new, suffix = target, 1
    while new.exists():
        suffix += 1
        new = target.with_name(f"{target.name}_{suffix}")
    folder.rename(new)
    return new
