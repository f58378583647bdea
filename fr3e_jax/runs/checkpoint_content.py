"""The content of a checkpoint: arrays by path, and JSON with the host state, the arrays' structure and checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from fr3e_jax.programs.checksums import checksums

ArrayTree = Any
FORMAT = 2
"""The format of checkpoints: content that another number wrote is refused. Raise it when the content changes."""
JSON_SCALARS = {str, int, float, bool, type(None)}


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


def check_format(folder: Path, content: Mapping[str, Any]) -> None:
    """Refuse the checkpoint in ``folder`` unless it is of this version's format.

    Raises:
      OtherFormat: the format is another one, or from before formats had numbers.
    """
    version = content.get("format", "none (an earlier version of fr3e_jax saved it)")
    if version != FORMAT:
        raise OtherFormat(
            f"the checkpoint of step {folder.name} in {folder.parent} cannot be read: found format {version}, expected "
            f"{FORMAT}; finish the run with the version that began it, or let that version write the weights (fr3e "
            "export) and start a new run from them (model.path)"
        )


def content_of(host: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON part of a checkpoint: host state, structure and checksums of the arrays, and a checksum of itself.

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
