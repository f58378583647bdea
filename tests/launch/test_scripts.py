"""The launchers as texts: shellcheck finds nothing, and each script is strict and executable."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"
SOURCED = ("launcher.sh", "require.sh")
PARTS = (*SOURCED, "worker.sh", "tpu_worker.sh")  # a user does not call them
SCRIPTS = sorted(LAUNCH.glob("*.sh"))


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    assert shellcheck, "shellcheck is missing; requirements-dev.lock has it (make test installs it)"
    result = subprocess.run([shellcheck, "--external-sources", *SCRIPTS], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", [path.name for path in SCRIPTS if path.name not in PARTS])
def test_help_is_the_head_of_the_script_without_any_variable(bench, name):
    result = bench.launch(name, "--help", cwd=bench.folder)
    assert result.returncode == 0, result.stderr
    assert f"launch/{name}" in result.stdout and "--dry-run" in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.startswith(("#", "set "))]


@pytest.mark.parametrize("name", [path.name for path in SCRIPTS if path.name not in SOURCED])
def test_script_is_strict_and_executable(name):
    script = LAUNCH / name
    text = script.read_text()
    assert script.stat().st_mode & 0o111
    assert text.startswith("#!/usr/bin/env bash\n") and "\nset -euo pipefail\n" in text
