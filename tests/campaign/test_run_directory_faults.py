"""Faults around a run directory: two writers, a directory that disappears, a full disk, weights that become NaN."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign_cases import generator, log, seeded
from run_comparison import assert_same_run
from run_process import RunProcess

pytestmark = pytest.mark.campaign


def wait_for(run: RunProcess, process: subprocess.Popen, line: str) -> None:
    """Wait until the run's metrics have a line that begins so."""
    metrics = run.run_dir / "metrics.jsonl"
    while not (metrics.exists() and line in metrics.read_text()):
        assert process.poll() is None, run.log.read_text()
        time.sleep(0.005)


@seeded()
def test_a_second_run_in_the_directory_is_refused_and_the_first_is_unharmed(run_process, finished_run, session, seed):
    run, step = run_process(), generator("two runs", seed).randrange(0, 4)
    first = run.start()
    wait_for(run, first, f'{{"step": {step}, "kind": "{"train" if step else "eval"}"')
    before = run.log.read_text()
    first.send_signal(19)  # SIGSTOP: the first run must still be there when the second looks
    try:
        second = run.run("--resume")
    finally:
        first.send_signal(18)
    said = run.log.read_text()[len(before) :]
    assert second not in (0, -6, -11), said
    assert f"process {first.pid}" in said or str(first.pid) in said, said
    assert first.wait(timeout=300) == 0, run.log.read_text()
    assert_same_run(run.run_dir, finished_run, session)
    log("second run in the directory", "refused with the first one's process; the first is equal to the last bit")


@seeded()
@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_run_whose_directory_disappears_exits_with_1(tmp_path, run_process, seed, how):
    run, step = run_process(), generator(how, seed).randrange(0, 3)
    process = run.start()
    wait_for(run, process, f'{{"step": {step}, "kind": "{"train" if step else "eval"}"')
    os.replace(run.run_dir, tmp_path / "elsewhere")
    if how == "deleted":
        shutil.rmtree(tmp_path / "elsewhere")
    assert process.wait(timeout=300) == 1, run.log.read_text()
    assert str(run.run_dir) in run.log.read_text().rsplit("stopped", 1)[-1], run.log.read_text()
    log(f"run directory {how} during the run", "exit code 1, and a line")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of a few hundred kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@seeded(2)
def test_a_full_disk_costs_one_line_and_the_run_continues_equal(
    tmp_path, run_process, finished_run, session, small_disk, seed
):
    run = run_process(small_disk / "runs", checkpoint__keep_last=1)
    run.log = tmp_path / "log.txt"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(generator("disk", seed).randrange(300_000, 800_000)))
    code = run.run()
    said = run.log.read_text()
    if code == 0:
        log("disk full", "the run fitted")
        return
    assert code == 1, said
    assert said.count("No space left") <= 3 and len(said.splitlines()) < 40, said
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert run.run(*run.resume_arguments()) == 0, run.log.read_text()
    assert_same_run(run.run_dir, finished_run, session)
    log("disk full", "stopped in a few lines; equal to the last bit after space was made")
