"""Executables in files, so that a later process calls a program without tracing, lowering or compiling it.

Two kinds of files lie in the folder. ``HASH.program`` holds an executable; its name is a hash of the lowered text and
the machine. ``HASH.link`` names one; its own name is a hash of the program's fingerprint, the machine, and this
package's sources. After the sources have changed, programs are lowered once, and those of the same text get a new link.

A file is written beside its place and then moved, so processes may share the folder. A file that is damaged, renamed,
or of another machine or version is never used: its hash or its name differs, and the program is compiled as if there
were none. Loading a file can run code, as with jax's own cache, so nobody else should be able to write into the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import math
import os
import pickle
import platform
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from fr3e_jax.programs.fingerprints import CODE
from fr3e_jax.runs.compilation import CACHE_HIT, PROGRAM, fetched_in

MOST_BYTES = 2 * 2**30  # of the folder; beyond, the files that were not used for longest are deleted
_FORMAT = b"fr3e program 1\n"
_SIZE_OF_HASH = 32
_SETTINGS_WITHOUT_EFFECT = ("cache", "log", "traceback", "explain", "dump", "monitoring", "captured")
_VERSIONED = ("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes")


class StoredExecutables:
    """The store of a process; see `fr3e_jax.programs.program.Executables`."""

    def __init__(self, folder: Path):
        """Make the folder if it is missing, and delete its oldest files if they take too much.

        Raises:
          OSError: the folder cannot be made.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _delete_oldest(folder, MOST_BYTES)
        self._silent = False

    @cached_property
    def _machine(self) -> bytes:
        return machine()

    @cached_property
    def _sources(self) -> bytes:
        return sources() + self._machine

    def fetch(self, program: str) -> jax.stages.Compiled | None:
        """The executable of a program with this fingerprint, or None."""
        start = time.perf_counter()
        link = self._path(program, self._sources, "link")
        found = _read(link)
        executable = self._load(self.folder / found.decode()) if found else None
        if executable is None:
            return None
        _touch(link)
        fetched_in(time.perf_counter() - start)
        return executable

    def compile(self, program: str, interface: str, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Compile and store a program, or fetch one of the same text."""
        start = time.perf_counter()
        text = hashlib.sha256(lowered.as_text().encode()).hexdigest()
        path = self._path(f"{text} {interface} {lowered.out_tree}", self._machine, "program")
        executable = self._load(path)
        if executable is not None:
            fetched_in(time.perf_counter() - start)
        else:
            before = _compiled_here()
            with _not_written_by_jax():
                executable = lowered.compile()
            # XLA on CPU cannot write out again what jax has fetched from its own cache: the machine code is missing.
            if _compiled_here() == before or not self._save(path, executable):
                return executable
        self._write(self._path(program, self._sources, "link"), path.name.encode())
        return executable

    def _path(self, name: str, beside: bytes, kind: str) -> Path:
        return self.folder / f"{hashlib.sha256(beside + name.encode()).hexdigest()}.{kind}"

    def _load(self, path: Path) -> jax.stages.Compiled | None:
        content = _read(path)
        if content is None:
            return None
        try:
            executable, in_tree, out_tree = pickle.loads(zlib.decompress(content))
            loaded = deserialize_and_load(executable, in_tree, out_tree)
        except Exception:  # whatever a file of another version may cause
            path.unlink(missing_ok=True)
            return None
        _touch(path)
        return loaded

    def _save(self, path: Path, executable: jax.stages.Compiled) -> bool:
        try:
            content = pickle.dumps(serialize(executable))
        except Exception:  # a program with callbacks into this process, or a tree of another package
            return False
        return self._write(path, zlib.compress(content, 1))

    def _write(self, path: Path, content: bytes) -> bool:
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
                file.write(_FORMAT + _hash_of(path.name, content) + content)
            os.replace(file.name, path)
        except OSError as error:
            if not self._silent:
                print(f"fr3e: programs are not kept in {self.folder}: {error}", file=sys.stderr)
            self._silent = True
            return False
        return True


def _hash_of(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + content).digest()


def _read(path: Path) -> bytes | None:
    """The content of a whole file under its own name; any other file is deleted."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    start = len(_FORMAT) + _SIZE_OF_HASH
    content = found[start:]
    if found[:start] == _FORMAT + _hash_of(path.name, content):
        return content
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(path)


def _delete_oldest(folder: Path, most: int) -> None:
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    size = sum(size for _, size, _ in found)
    for _, own, path in sorted(found):
        if size <= most:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        size -= own


_counts = threading.local()


def _compiled_here() -> int:
    """How many programs this thread has compiled, without those that jax had in memory or in its own cache."""
    return getattr(_counts, "programs", 0) - getattr(_counts, "fetched", 0)


def _on_event(event: str, **details: object) -> None:
    if event == CACHE_HIT:
        _counts.fetched = getattr(_counts, "fetched", 0) + 1


def _on_duration(event: str, duration_secs: float, **details: object) -> None:
    if event == PROGRAM:
        _counts.programs = getattr(_counts, "programs", 0) + 1


jax.monitoring.register_event_listener(_on_event)
jax.monitoring.register_event_duration_secs_listener(_on_duration)


_compiling: list[float] = []  # jax's setting, once for each thread within
_compiling_lock = threading.Lock()


@contextlib.contextmanager
def _not_written_by_jax() -> Iterator[None]:
    """Within the block, jax writes no program into its own cache: this store has them."""
    name = "jax_persistent_cache_min_compile_time_secs"
    with _compiling_lock:
        _compiling.append(_compiling[0] if _compiling else jax.config.values[name])
        jax.config.update(name, math.inf)
    try:
        yield
    finally:
        with _compiling_lock:
            before = _compiling.pop()
            if not _compiling:
                jax.config.update(name, before)


def sources() -> bytes:
    """A hash of the package's sources that make programs, and of the versions of the libraries beneath them."""
    digest = hashlib.sha256()
    for name in CODE:
        folder = Path(str(importlib.import_module(name).__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{name} {path.name} {len(content)}\n".encode() + content)
    versions = {name: importlib.metadata.version(name) for name in _VERSIONED}
    digest.update(repr((sys.version, versions)).encode())
    return digest.digest()


def machine() -> bytes:
    """A hash of all that XLA's result depends on beside the program: devices, processor, versions, flags."""
    device = jax.devices()[0]
    settings = {
        name: value
        for name, value in sorted(jax.config.values.items())
        if not any(part in name for part in _SETTINGS_WITHOUT_EFFECT)
    }
    flags = {name: value for name, value in sorted(os.environ.items()) if name.startswith(("XLA_", "LIBTPU_", "TF_"))}
    parts = (
        *(importlib.metadata.version(name) for name in ("jax", "jaxlib")),
        *(device.platform, device.client.platform_version),
        [(one.id, one.device_kind) for one in jax.devices()],
        *(platform.machine(), processor(), _processors(), repr(settings), flags),
    )
    return hashlib.sha256(repr(parts).encode()).digest()


def processor() -> str:
    """Model and features of the first processor, as Linux tells them; elsewhere its name."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return platform.processor()
    told = (
        "model",
        "cpu family",
        "stepping",
        "vendor_id",
        "flags",
        "features",
        "cpu implementer",
        "cpu part",
        "cpu variant",
    )
    return "\n".join(line for line in first.splitlines() if line.lower().startswith(told))


def _processors() -> int:
    """Processors that this process may use: XLA on CPU splits loops among them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
