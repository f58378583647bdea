from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs import run_lock
from fr3e_jax.runs.run_lock import RunDirectoryGone, RunLock, writer

HOLDER = (
    "import pathlib, sys; from fr3e_jax.runs.run_lock import RunLock; lock = RunLock();"
    "lock.acquire(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
)


def test_a_second_writer_is_refused_with_the_process_machine_and_start_of_the_first(tmp_path):
    with RunLock() as first, RunLock() as second:
        first.acquire(tmp_path)
        with pytest.raises(ConfigError) as refused:
            second.acquire(tmp_path)
    message = str(refused.value)
    assert f"{tmp_path} is in use by the run of process {os.getpid()} on {socket.gethostname()}, started 2" in message
    assert "Wait for it, stop it, or choose another runtime.run_dir" in message


def test_a_released_lock_can_be_taken(tmp_path):
    with RunLock() as first:
        first.acquire(tmp_path)
    with RunLock() as second:
        second.acquire(tmp_path)
        second.check()


def test_the_lock_of_a_killed_process_is_stale(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with RunLock() as second:
            with pytest.raises(ConfigError, match=f"process {holder.pid} on"):
                second.acquire(tmp_path)
            holder.kill()
            holder.wait()
            second.acquire(tmp_path)
            assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def of_another_machine(tmp_path, age: float = 0):
    file = tmp_path / ".lock"
    file.write_text(json.dumps({"pid": 7, "host": "elsewhere", "started": "2026-01-01 00:00:00"}))
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_a_silent_writer_on_another_machine_is_stale(tmp_path):
    of_another_machine(tmp_path, age=2 * run_lock.SILENT_SECONDS)
    with RunLock() as lock:
        lock.acquire(tmp_path)


def test_a_writer_on_another_machine_that_falls_silent_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "SILENT_SECONDS", 1.0)
    of_another_machine(tmp_path)
    start = time.monotonic()
    with RunLock() as lock:
        lock.acquire(tmp_path)
    assert time.monotonic() - start > 0.5


def test_a_living_writer_on_another_machine_is_respected(tmp_path):
    file = of_another_machine(tmp_path)
    beat = threading.Timer(0.5, lambda: os.utime(file))
    beat.start()
    with RunLock() as lock, pytest.raises(ConfigError, match="process 7 on elsewhere, started 2026-01-01"):
        lock.acquire(tmp_path)
    beat.join()


def test_a_writer_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.05)
    with RunLock() as lock:
        lock.acquire(tmp_path)
        os.utime(tmp_path / ".lock", (0, 0))
        deadline = time.monotonic() + 60
        while (tmp_path / ".lock").stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / ".lock").stat().st_mtime > 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        "\xff",
        "[" * 10_000,
        '{"pid": 1e400}',
        *(f'{{"pid": {pid}, "host": "HERE"}}' for pid in ("-1", "0", "1.5", '"me"', "9" * 30)),
    ],  # fmt: skip
)
def test_a_damaged_lock_file_names_nobody(tmp_path, content):
    (tmp_path / ".lock").write_text(content.replace("HERE", socket.gethostname()), "latin-1")
    assert "1e400" in content or writer(tmp_path) == {}
    with RunLock() as lock:
        lock.acquire(tmp_path)
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_directory_in_the_place_of_the_lock_file_is_named(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(ConfigError, match=r"\.lock is a directory; expected the file"):
        RunLock().acquire(tmp_path)


def test_without_locks_in_the_file_system_the_process_decides(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(run_lock.fcntl, "flock", unsupported)
    file = tmp_path / ".lock"
    file.write_text(json.dumps({"pid": os.getppid(), "host": socket.gethostname(), "started": "now"}))
    with RunLock() as lock:
        with pytest.raises(ConfigError, match=f"process {os.getppid()} on"):
            lock.acquire(tmp_path)
        file.write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname(), "started": "now"}))
        lock.acquire(tmp_path)


@pytest.mark.parametrize("how", ["moved", "deleted", "taken over"])
def test_a_directory_that_is_gone_is_noticed(tmp_path, how):
    directory = tmp_path / "run"
    directory.mkdir()
    with RunLock() as lock:
        lock.acquire(directory)
        lock.check()
        if how == "deleted":
            (directory / ".lock").unlink()
            directory.rmdir()
        elif how == "moved":
            directory.rename(tmp_path / "elsewhere")
        else:
            (directory / ".lock").unlink()
            (directory / ".lock").touch()
        with pytest.raises(RunDirectoryGone, match=rf"{directory} was deleted or moved.*continue .* with --resume"):
            lock.check()
