"""Importing and exporting hold about one tensor on the host beyond the device arrays: the benchmark, on a small one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="anonymous memory is read from Linux's /proc")
def test_loading_a_checkpoint_holds_one_tensor_on_the_host_at_a_time():
    """Half of its 0.3 GB is one tensor, so that a second one at the same time would show."""
    command = [sys.executable, str(ROOT / "benchmarks" / "import_memory.py"), "--gigabytes", "0.3", "--devices", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "import:" in ended.stdout and "export:" in ended.stdout
