"""The memory of import and export, measured by the benchmark on a small checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="anonymous memory is read from Linux's /proc")
def test_loading_a_checkpoint_holds_one_tensor_on_the_host_at_a_time():
    """One tensor is half of the 0.3 GB, so a second copy of it would show."""
    command = [sys.executable, str(ROOT / "benchmarks" / "import_memory.py"), "--gigabytes", "0.3", "--devices", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "import:" in ended.stdout and "export:" in ended.stdout
