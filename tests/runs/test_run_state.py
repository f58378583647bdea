"""How a run ended, as its directory tells it afterwards."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest

from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.runs.run_lock import RunLock
from fr3e_jax.runs.run_state import RunState, StatusFile, run_state


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def lock(run, *, silent: float = 0.0, **holder):
    path = run.path / ".lock"
    path.write_text(json.dumps(holder))
    os.utime(path, (time.time() - silent,) * 2)


def test_a_run_that_holds_its_lock_is_running_and_then_as_it_ended(run):
    with RunLock() as held:
        held.acquire(run.path)
        with StatusFile(run) as status:
            status.end("stopped", "SIGTERM")
            assert run_state(run) == RunState("running", f"process {os.getpid()} on {socket.gethostname()}")
    assert run_state(run) == RunState("stopped", "SIGTERM")


def test_a_run_without_a_last_word_was_interrupted(run):
    StatusFile(run).__enter__()
    assert run_state(run).state == "interrupted"
    lock(run, pid=2**22 + 1, host=socket.gethostname())  # no process has such a number
    assert run_state(run).state == "interrupted"


@pytest.mark.parametrize("silent, state", [(1.0, "running"), (600.0, "interrupted")])
def test_a_writer_on_another_machine_lives_as_long_as_it_gives_signs_of_life(run, silent, state):
    StatusFile(run).__enter__()
    lock(run, silent=silent, pid=1, host="elsewhere")
    assert run_state(run).state == state


def test_an_exception_is_a_failure_with_its_text(run):
    with pytest.raises(ZeroDivisionError), StatusFile(run) as status:
        status.end("finished")
        raise ZeroDivisionError("no rollouts")
    assert run_state(run) == RunState("failed", "ZeroDivisionError: no rollouts")


def test_a_reason_is_one_line_with_the_end_of_its_traceback(run):
    with StatusFile(run) as status:
        status.end("failed", "the verifier failed:\nTraceback\n  line 2\nValueError: x\n")
    assert run_state(run).reason == "the verifier failed: ... ValueError: x"


def test_a_block_that_never_says_how_it_ended_failed(run):
    with StatusFile(run):
        pass
    assert run_state(run).state == "failed"


def test_other_processes_write_nothing_and_a_deleted_directory_stays_deleted(run):
    with StatusFile(run, writes=False) as status:
        status.end("finished")
    assert not (run.status).exists()
    gone = RunDirectory(run.path / "gone")
    with StatusFile(gone) as status:
        status.end("finished")
    assert not gone.path.exists()


@pytest.mark.parametrize(
    "content, state",
    [(b"{", "interrupted"), (b"[1]", "interrupted"), (b'{"state": "odd", "reason": ""}', "interrupted")],
)
def test_a_damaged_status_is_said(run, content, state):
    (run.status).write_bytes(content)
    assert run_state(run).state == state


def test_a_run_without_a_status_is_interrupted(run):
    assert run_state(run) == RunState("interrupted", "no status was written")
