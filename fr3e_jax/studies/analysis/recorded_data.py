"""Fingerprints of a run's data, tokenizer and user's files, as its newest checkpoint records them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from fr3e_jax.runs.run_directory import RunDirectory

_LABELS = {"training_data": "training data", "demonstrations": "demonstrations", "tokenizer": "tokenizer"}
_GROUPS = {"held_out_data": "held-out data", "files": "file of"}


def recorded_data(run_dir: RunDirectory) -> dict[str, str]:
    """Names such as "training data" or "held-out data aime24" -> fingerprint; empty without a checkpoint to read.

    The host state of a checkpoint is JSON (`runs/checkpoints.py`); its arrays are not touched.
    """
    steps = run_dir.checkpoints.iterdir() if run_dir.checkpoints.is_dir() else ()
    for step in sorted(
        (path for path in steps if path.name.isdecimal()), key=lambda path: int(path.name), reverse=True
    ):
        try:
            identity = orjson.loads((step / "host" / "metadata").read_bytes())["host"]["identity"]
            return dict(_fingerprints(identity))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # under way, damaged, or of an older version
            continue
    return {}


def _fingerprints(identity: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, label in _LABELS.items():
        if key in identity:
            yield label, str(identity[key])
    for key, label in _GROUPS.items():
        for name, found in identity.get(key, {}).items():
            yield f"{label} {name}".strip(), str(found)
