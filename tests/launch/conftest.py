"""Stand-ins for the programs that the launchers call: each records its arguments and can run a body."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"
KEPT = ("PATH", "HOME", "LANG")


@pytest.fixture
def bench(tmp_path: Path):
    """Functions for the tests of the launchers.

    ``stub`` puts a program on PATH. ``launch`` and ``start`` run a launcher with the given variables alone. ``calls``
    returns the recorded calls of a stub.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    plain = {name: os.environ[name] for name in KEPT if name in os.environ}
    plain["PATH"] = f"{programs}:{plain['PATH']}"

    def stub(name: str, body: str = "") -> str:
        # One write a call: the two ends of a pipe may be the same stub.
        note = f"printf '%s\\n' \"$(printf '%q ' \"$@\")\" >>{tmp_path}/{name}.calls"
        (programs / name).write_text(f"#!/usr/bin/env bash\n{note}\n{body}\n")
        (programs / name).chmod(0o755)
        return str(programs / name)

    def launch(script: str, *arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [LAUNCH / script, *arguments],
            env=plain | variables,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
        )

    def start(script: str, *arguments: str, **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            [LAUNCH / script, *arguments],
            env=plain | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def calls(name: str) -> list[str]:
        file = tmp_path / f"{name}.calls"
        return [line.strip() for line in file.read_text().splitlines()] if file.exists() else []

    recipe = tmp_path / "mine.yaml"
    recipe.write_text("name: mine\n")
    return SimpleNamespace(stub=stub, launch=launch, start=start, calls=calls, folder=tmp_path, recipe=str(recipe))
