"""The manifest of a mirrored run: the one object that says which files the store holds.

It is written last, in one piece. So a checkpoint whose upload was killed is in no manifest, and nobody reads it.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fr3e_jax.stores.objects import Store, StoreFailed

MANIFEST = ".fr3e_mirror.json"
CHECKPOINTS = "checkpoints/"
_BLOCK = 2**22


class Content(NamedTuple):
    """Size and checksum of a file."""

    size: int
    crc32: int


@dataclass
class Manifest:
    """The files of a run in its store; ``generation`` names this very state of them."""

    generation: str = ""
    files: dict[str, Content] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store) -> Manifest | None:
        """The manifest of a run; None if the address holds none.

        Raises:
          StoreFailed: the store cannot be read, or the manifest is damaged.
        """
        content = store.read(MANIFEST)
        if content is None:
            return None
        try:
            found = json.loads(content)
            files = {name: Content(*map(int, entry)) for name, entry in found["files"].items()}
            return cls(str(found["generation"]), files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreFailed(
                f"{store.address}/{MANIFEST} is damaged ({error}); expected the list of the run's files: restore an "
                "earlier version of that object, or choose another runtime.run_dir"
            ) from error

    def without(self, steps: Collection[str]) -> Manifest:
        """A copy under a new name, without the files of these checkpoints."""
        kept = {name: content for name, content in self.files.items() if checkpoint_of(name) not in {*steps} - {""}}
        return Manifest(uuid.uuid4().hex, kept)

    def write(self, store: Store) -> None:
        content = {"generation": self.generation, "files": self.files}
        store.write(MANIFEST, json.dumps(content, separators=(",", ":")).encode())

    def steps(self) -> dict[str, list[str]]:
        """The files of each checkpoint, by its folder, ``checkpoints/12/``."""
        found: dict[str, list[str]] = {}
        for name in self.files:
            if folder := checkpoint_of(name):
                found.setdefault(folder, []).append(name)
        return found


def checkpoint_of(name: str) -> str:
    """``checkpoints/12/`` for a file of that checkpoint, else ""."""
    parts = name.split("/", 2)
    return f"{CHECKPOINTS}{parts[1]}/" if len(parts) == 3 and name.startswith(CHECKPOINTS) else ""


def content_of_file(path: Path) -> Content:
    crc = size = 0
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return Content(size, crc)
