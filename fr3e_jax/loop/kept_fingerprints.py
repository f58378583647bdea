"""Fingerprints of procedural problems, kept in files: a start would draw 24,000 problems anew, which takes 1.5 s.

The problems of the package's own tasks follow from settings, seed, split, code and libraries. A hash of all of these
names the file, so that a change of any of them has the problems drawn again. Problems of other tasks are never kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import fr3e_jax
from fr3e_jax.configuration.schema import RuntimeConfig
from fr3e_jax.data.procedural import ProceduralProblems
from fr3e_jax.problem import Problem
from fr3e_jax.runs.run_directory import atomic_file
from fr3e_jax.stores.objects import is_remote

Fingerprint = Callable[[Sequence[Problem]], str]

PACKAGE = Path(str(fr3e_jax.__file__)).parent
_TASKS = "fr3e_jax.data."
_SOURCES = ("data", "rewards", "loop/run_identity.py")  # of the problems, their answers and the fingerprint
_FINGERPRINT = re.compile(r"[0-9]+ problems, [0-9a-f]{16}")


def kept(fingerprint: Fingerprint, runtime: RuntimeConfig, sources: Path = PACKAGE) -> Fingerprint:
    """``fingerprint``, which reads and writes files of `RuntimeConfig.compilation_cache` if that is a directory.

    Args:
      fingerprint: of any problems.
      runtime: names the folder.
      sources: the package's folder, whose code is part of a file's name.
    """
    if not runtime.compilation_cache or is_remote(runtime.compilation_cache):
        return fingerprint
    folder = Path(runtime.compilation_cache).expanduser() / "fingerprints"

    def found(problems: Sequence[Problem]) -> str:
        name = _name(problems, sources)
        if name is None:
            return fingerprint(problems)
        path = folder / name
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = path.read_text()
            if _FINGERPRINT.fullmatch(text):  # a damaged file is written again
                return text
        text = fingerprint(problems)
        with contextlib.suppress(OSError), atomic_file(path) as stream:  # no room, or no right to write
            stream.write(text.encode())
        return text

    return found


def _name(problems: Sequence[Problem], sources: Path) -> str | None:
    """A hash of all that the problems follow from; None: they are not from a task of this package."""
    if type(problems) is not ProceduralProblems or problems.settings is None:
        return None
    task = type(getattr(problems.draw, "__self__", None))
    if not task.__module__.startswith(_TASKS):
        return None
    told = (task.__qualname__, problems.settings, problems.seed, problems.split, np.__version__, sys.version)
    digest = hashlib.sha256(repr(told).encode())
    for part in _SOURCES:
        path = sources / part
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(sources)} {len(content)}\n".encode() + content)
    return digest.hexdigest()
