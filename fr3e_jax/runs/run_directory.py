"""The directory of one run: the path of each file, and writes that a kill cannot leave half done."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

from typing_extensions import TypedDict

from fr3e_jax.configuration import ConfigError, save_config
from fr3e_jax.configuration.provenance import PROVENANCE_FILE, RUN_FORMAT
from fr3e_jax.configuration.schema import Config
from fr3e_jax.runs.run_lock import RunLock, writer
from fr3e_jax.stored_json import DamagedRecord, read_record
from fr3e_jax.stores.copies import address_of
from fr3e_jax.stores.mirror import Mirror, working_copy
from fr3e_jax.stores.objects import is_remote, join, store_of
from fr3e_jax.stores.reading import Place, has_checkpoint, holds_run, run_folder

STATUS = "status.json"

CHECKPOINT_FORMAT = 7
"""The format of checkpoints: content that another number wrote is refused. Raise it when the content changes."""


class Formatted(TypedDict, total=False):
    """A stored file's number of its format."""

    format: int


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that replaces ``path`` when the block ends; if the block raises, ``path`` stays as it was.

    The bytes are on disk before the rename, so that a reader finds the old file or the new one, never a part.
    """
    path = Path(path)
    # One fixed name per target: the next writer overwrites the file that a killed one left.
    temporary = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json_atomic(path: Path, content: Any) -> None:
    """Write indented JSON; NaN and infinities become null, array scalars become numbers.

    Raises:
      TypeError: JSON cannot express ``content``; the old file stays.
    """
    try:
        text = json.dumps(_without_nonfinite(content), indent=2, allow_nan=False)
    except TypeError as error:
        raise TypeError(
            f"cannot write {path}: {error}; expected dicts, lists, strings, numbers, booleans and None"
        ) from error
    with atomic_file(path) as stream:
        stream.write(text.encode() + b"\n")


def _without_nonfinite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_nonfinite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nonfinite(value) for value in content]
    if getattr(content, "ndim", None) == 0:
        content = content.item()
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def _entry(name: str) -> property:
    """A property with the path of a file or folder of this name."""

    def path(run: RunDirectory) -> Path:
        return run.path / name

    return property(path)


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run. Creating the object touches nothing on disk."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).expanduser())

    @classmethod
    def create(cls, path: Place) -> RunDirectory:
        """Make the directory of a fresh run, which may exist, and hold a start that failed, but no finished step.

        Raises:
          FileExistsError: it holds a run.
        """
        chosen = cls(Path(path))
        if chosen.holds_steps():
            raise FileExistsError(
                f"runtime.run_dir={chosen.path} already holds a run ({', '.join(chosen._traces())}); "
                "expected an empty or new directory: continue that run with --resume, "
                "or choose another runtime.run_dir"
            )
        chosen.path.mkdir(parents=True, exist_ok=True)
        return chosen

    @classmethod
    def create_unused(cls, output_dir: str | Path, name: str, *, now: datetime | None = None) -> RunDirectory:
        """Make a directory of its own for a fresh run: ``output_dir/NAME-YYYYmmdd-HHMMSS``."""
        output = Path(output_dir).expanduser()
        output.mkdir(parents=True, exist_ok=True)
        for candidate in _candidates(name, now):
            # mkdir tests and claims the name in one step: two runs of a sweep may start in the same second.
            with contextlib.suppress(FileExistsError):
                (output / candidate).mkdir()
                return cls(output / candidate)
        raise AssertionError("the candidates do not end")

    @classmethod
    def existing(cls, path: str | Path, *, checkpoints: bool = True) -> RunDirectory:
        """The directory of a run to resume or to read.

        Args:
          path: the directory.
          checkpoints: they are read, too, so their format counts.

        Raises:
          FileNotFoundError: ``path`` holds no run.
          ConfigError: see `check_format`.
        """
        chosen = cls(Path(path))
        if not chosen.holds_run():
            problem = "a directory without config.yaml" if chosen.path.is_dir() else "no such directory"
            raise FileNotFoundError(
                f"{chosen.path} holds no run: found {problem}; expected the directory of an earlier run "
                "(`fr3e runs` lists them)"
            )
        check_format(chosen.path, checkpoints=checkpoints)
        return chosen

    def _traces(self) -> list[str]:
        """Names of the existing files that show a run."""
        paths = (self.config, self.metrics, self.summary, self.rollouts, self.checkpoints)
        return [path.name for path in paths if path.exists()]

    def holds_run(self) -> bool:
        return bool(self._traces())

    def holds_steps(self) -> bool:
        """true if a step may have been finished here; false after a start that failed before."""
        if not self.metrics.exists():
            return self.summary.exists() or self.rollouts.exists() or any(self.checkpoints.glob("*"))
        lines = self.metrics.read_bytes().splitlines()
        return self.summary.exists() or any(self.checkpoints.glob("*")) or not all(map(_is_of_the_start, lines))

    def set_aside_start(self) -> None:
        """Move what a start has left that failed before its first step into a folder of this directory."""
        paths = (self.config, self.provenance, self.status, self.metrics, self.rollouts, self.checkpoints)
        left = [path for path in (*paths, self.tensorboard, self.profile, self.trackers) if path.exists()]
        if not left:
            return
        aside = self.path / f"failed_start-{datetime.now():%Y%m%d-%H%M%S}"
        aside.mkdir()
        for path in left:
            path.rename(aside / path.name)
        print(f"fr3e: an earlier start failed before its first step; its files are now in {aside}", file=sys.stderr)

    @property
    def address(self) -> str:
        """The name that users know: the path, or the address in a store whose working copy it is."""
        return address_of(self.path)

    config = _entry("config.yaml")
    provenance = _entry("provenance.json")
    metrics = _entry("metrics.jsonl")
    summary = _entry("summary.json")
    status = _entry(STATUS)
    log = _entry("log.txt")
    rollouts = _entry("rollouts")
    checkpoints = _entry("checkpoints")
    tensorboard = _entry("tensorboard")
    profile = _entry("profile")
    trackers = _entry("trackers.json")


def check_format(run_dir: Path, *, checkpoints: bool = True) -> None:
    """Refuse a run whose directory or, with ``checkpoints``, newest checkpoint has the number of another format.

    A directory without a number is read: the files of runs had the first format before it had a number.

    Raises:
      ConfigError: the numbers differ.
    """
    expected = {run_dir / PROVENANCE_FILE: RUN_FORMAT}
    if steps := [path for path in (run_dir / "checkpoints").glob("*") if checkpoints and path.name.isdecimal()]:
        newest = max(steps, key=lambda path: int(path.name))
        expected[newest / "host" / "metadata"] = CHECKPOINT_FORMAT
    for path, number in expected.items():
        with contextlib.suppress(OSError, DamagedRecord):  # the readers of the file say so
            if (version := read_record(Formatted, path.read_bytes(), "").get("format", number)) != number:
                raise ConfigError(
                    f"{run_dir} is a run of another version of fr3e_jax: found format {version}, expected {number} "
                    f"({path}); read and finish it with the version that wrote it"
                )


def open_run(config: Config, run_dir: Place | None, resume: bool, verb: str, lock: RunLock, mirror: Mirror) -> str:
    """Path of a run's directory: ``run_dir`` to resume, else a new directory with the settings of ``verb`` in it.

    The ``lock`` of the directory is taken. Of a run in a store, this is the working copy, and ``mirror`` begins.

    Raises:
      ConfigError: ``run_dir`` holds no run to resume, ``runtime.run_dir`` holds one already, or another run writes
        there.
    """
    runtime = config.runtime
    chosen = run_dir if resume else runtime.run_dir
    try:
        if not chosen and is_remote(runtime.output_dir):
            addresses = (join(runtime.output_dir, candidate) for candidate in _candidates(config.name))
            with store_of("runtime.output_dir"):
                chosen = next(address for address in addresses if not holds_run(address))
        if address := _address(chosen):
            run = RunDirectory(working_copy(address))
            run.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(run.path)
            with store_of("runtime.run_dir"):
                try:
                    mirror.open(address, run.path, resume)
                except FileExistsError:
                    if holds_steps(address):
                        raise
                    mirror.open(address, run.path, resume=True)
        elif resume:
            run = RunDirectory.existing(cast(Path, chosen))
            lock.acquire(run.path)
        else:
            run = RunDirectory.create(chosen) if chosen else RunDirectory.create_unused(runtime.output_dir, config.name)
            lock.acquire(run.path)
            RunDirectory.create(run.path)  # another run may have been quicker
        if not resume:
            run.set_aside_start()
            save_config(config, run.path, verb=verb)
    except (OSError, ValueError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.errno is not None:  # raised by the system, not by this package
            setting = f"runtime.{'run_dir' if run_dir or runtime.run_dir else 'output_dir'}"
            folder = run_dir or runtime.run_dir or runtime.output_dir
            message = f"cannot write into {setting}={folder}: {error.strerror}; "
            message += f"set {setting} to a folder that can be written"
        raise ConfigError(message) from error
    return str(run.path)


def holds_steps(location: Place) -> bool:
    """true if a run is there that a new one must not replace: it may have finished a step, or is being written.

    Raises:
      OSError: a store cannot be read.
    """
    if not is_remote(location):
        return RunDirectory(Path(location)).holds_steps()
    if not holds_run(location):
        return False
    folder = run_folder(location, rollouts=False)
    return bool(writer(folder)) or has_checkpoint(str(location)) or RunDirectory(folder).holds_steps()


def _is_of_the_start(line: bytes) -> bool:
    try:
        return json.loads(line)["step"] == 0
    except (ValueError, TypeError, KeyError):
        return False


def _candidates(name: str, now: datetime | None = None) -> Iterator[str]:
    """Names for the directory of a new run, without an end."""
    stamp = f"{name}-{now or datetime.now():%Y%m%d-%H%M%S}"
    yield stamp
    yield from (f"{stamp}-{suffix}" for suffix in itertools.count(2))


def _address(chosen: Place | None) -> str:
    """The address of a run in a store, also where its working copy is named; "" for a run in a folder."""
    if not chosen:
        return ""
    address = str(chosen) if is_remote(chosen) else address_of(Path(chosen).expanduser())
    return address if is_remote(address) else ""


def check_seen_by_all(run: RunDirectory, gather: Callable[[bool], list[bool]]) -> None:
    """Refuse processes on machines that do not share the working copy: each writes its part of a checkpoint there.

    Raises:
      ConfigError: a process does not see the settings that the first one has written.
    """
    if not all(gather(run.config.exists())):
        raise ConfigError(
            f"{run.address}: the machines of this run do not share its working copy {run.path}; set FR3E_STORE_CACHE "
            "to a folder that all of them see, or mount the bucket (gcsfuse or s3fs; launch/tpu_pod.sh does so) and "
            "name the mounted folder"
        )
