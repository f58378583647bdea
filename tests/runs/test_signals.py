from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from fr3e_jax.runs.signals import Stopped, StopRequest, ended_with_a_line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_first_signal_only_sets_the_flag(number):
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.received == [number.name]


def test_second_sigint_interrupts_and_sigterm_never_does():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == ["SIGTERM", "SIGTERM", "SIGINT"]
        with pytest.raises(KeyboardInterrupt, match="second Ctrl-C"):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_restored_even_after_an_error():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(RuntimeError):
        with StopRequest():
            assert signal.getsignal(signal.SIGTERM) not in before
            raise RuntimeError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_other_threads_get_a_flag_that_stays_false():
    found = []

    def enter() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopRequest() as stop:
            found.extend([stop.requested, signal.getsignal(signal.SIGTERM) is before])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False, True]


def test_a_signal_in_a_block_that_can_be_repeated_raises_once():
    with StopRequest() as stop:
        with pytest.raises(Stopped, match="SIGTERM"), stop.at_once():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)  # on the way out
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received == ["SIGTERM", "SIGTERM", "SIGHUP"]


def test_a_signal_from_before_the_block_raises_at_its_entry():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(Stopped, match="SIGHUP"), stop.at_once():
            pytest.fail("the block was entered")
        with stop.at_once(False):
            assert stop.requested


def test_nohup_keeps_sighup_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


SIGNALLED_WHILE_IMPORTING = """
import os, signal, sys
from fr3e_jax.cli import main

class Importing:
    def find_spec(self, name, *rest):
        if name == "jax":
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
sys.meta_path.insert(0, Importing())
main(["train", sys.argv[2], "runtime.run_dir=" + sys.argv[3]])
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_while_the_command_imports_ends_it_with_a_line(tmp_path, name):
    (tmp_path / "recipe.yaml").write_text("name: demo")
    arguments = [name, str(tmp_path / "recipe.yaml"), str(tmp_path / "run")]
    command = [sys.executable, "-c", SIGNALLED_WHILE_IMPORTING, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == -getattr(signal, name), "as without a handler"
    assert process.stderr == f"fr3e: ended by {name}\n"
    assert not (tmp_path / "run").exists()


def test_the_line_gives_way_to_a_stop_request_and_to_ignored_signals():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_with_a_line():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.received == ["SIGTERM"]
    signal.signal(signal.SIGHUP, before[1])
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
