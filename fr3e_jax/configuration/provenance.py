"""Provenance of a run: settings, versions, machine, source code, command line."""

from __future__ import annotations

import json
import os
import platform as machine
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from fr3e_jax.configuration.describe import to_yaml
from fr3e_jax.configuration.schema import Config
from fr3e_jax.stored_json import DamagedRecord, read_record

RUN_FORMAT = 1
"""The format of run directories; another number is refused. Raise it when a file of theirs changes its meaning."""
PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")
CONFIG_FILE, PROVENANCE_FILE = "config.yaml", "provenance.json"
FIRST_LINE = "# The settings of a run. The last line of a whole file is: # end\n"
LAST_LINE = "# end\n"


class GitState(TypedDict):
    """The commit, and whether there are changes that it lacks."""

    commit: str
    dirty: bool


NO_GIT = GitState(commit="", dirty=False)


class Start(TypedDict, total=False):
    """One start of a run."""

    format: int
    verb: str
    time: str
    command: str
    versions: dict[str, str | None]
    platform: str
    device_kind: str
    git: GitState | None


class Provenance(Start, total=False):
    """The last start of a run, and those before."""

    earlier: list[Start]


def collect(platform: str | None = None, device_kind: str | None = None) -> dict[str, Any]:
    """Versions, device, git state and command line.

    Args:
        platform, device_kind: of the devices in use; asked of jax, which then starts, where None.
    """
    if platform is None or device_kind is None:
        import jax

        platform, device_kind = platform or jax.default_backend(), device_kind or jax.devices()[0].device_kind
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "versions": {"python": machine.python_version(), **{name: _version(name) for name in PACKAGES}},
        "platform": platform,
        "device_kind": device_kind,
        "git": git_state(Path(__file__)),
    }


def git_state(source: Path) -> GitState | None:
    """Commit of the repository that tracks ``source`` and whether it has changes; None without git or repository."""
    if _git(source, "ls-files", "--error-unmatch", source.name) is None:
        return None
    commit = _git(source, "rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(_git(source, "status", "--porcelain"))} if commit else None


def save_config(
    config: Config, run_dir: Path, verb: str = "train", resumed_step: int | None = None, **device: str
) -> None:
    """Write ``config.yaml``, usable as a recipe, and ``provenance.json``; a resumed run keeps its ``earlier`` ones.

    Args:
        verb: the command (train, sft, …); ``--resume`` looks for runs of the same verb.
        resumed_step: step of the checkpoint that a resumed run goes on from; other settings than before are kept as
            ``config.step_000006.yaml``, the settings that were in force up to step 6.
        device: ``platform`` and ``device_kind``, as ``collect`` takes them.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    provenance: dict[str, Any] = {"format": RUN_FORMAT, "verb": verb, **collect(**device)}
    previous = read_provenance(run_dir)
    if previous:
        provenance["earlier"] = [*previous.pop("earlier", []), previous]
    saved, text = run_dir / CONFIG_FILE, FIRST_LINE + to_yaml(config) + LAST_LINE
    if resumed_step is not None and saved.is_file():
        history, former = run_dir / f"config.step_{resumed_step:06d}.yaml", saved.read_bytes()
        if _without_runtime(former) != _without_runtime(text.encode()) and not history.exists():
            _replace(history, former)
    _replace(saved, text.encode())
    _replace(run_dir / PROVENANCE_FILE, (json.dumps(provenance, indent=2) + "\n").encode())


def _without_runtime(text: bytes) -> bytes:
    """The settings without those of the section ``runtime``, which change nothing that is learned."""
    head, mark, rest = text.partition(b"\nruntime:\n")
    return head + re.sub(rb"\A(  .*\n)*", b"", rest)


def read_provenance(run_dir: Path, say: Callable[[str], None] | None = None) -> Provenance:
    """The provenance that ``save_config`` wrote; empty if there is none or it is damaged.

    ``say`` gets a line that names a damaged file. A resumed run has several readers; one of them says it.
    """
    path = run_dir / PROVENANCE_FILE
    try:
        return read_record(Provenance, path.read_bytes(), str(path)) if path.is_file() else {}
    except DamagedRecord as error:
        if say is not None:
            say(f"{error}; {PROVENANCE_FILE} is damaged, going on without it")
        return {}


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)  # an interrupted write leaves the former file


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(source: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(source.parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
