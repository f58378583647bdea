from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from fr3e_jax.runs.signals import Stopped, StopRequest, ended_with_a_line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_stops_the_run_at_its_next_check(number):
    with StopRequest() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        for _ in range(2):
            with pytest.raises(Stopped, match=number.name):
                stop.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_run_at_once_unless_one_was_sent_twice(monkeypatch, number):
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), number)
        assert len(stop.received) == 2
        monkeypatch.setattr("fr3e_jax.runs.signals.SECONDS_APART", 0.0)
        with pytest.raises(KeyboardInterrupt, match=f"{number.name} after SIGTERM: ended at once, without saving"):
            os.kill(os.getpid(), number)


def test_processes_stop_where_all_agree_to():
    asked = []

    def agree(received, number):
        asked.append((list(received), number))
        return "SIGHUP" * (number == 2)

    stop = StopRequest(agree)
    stop.check()
    stop.ask("a callback")
    with pytest.raises(Stopped, match="SIGHUP"):
        stop.check()
    assert asked == [([], 1), (["a callback"], 2)]


def test_handlers_are_restored_even_after_an_error():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(RuntimeError):
        with StopRequest():
            assert signal.getsignal(signal.SIGTERM) not in before
            raise RuntimeError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_other_threads_install_no_handler():
    found = []

    def enter() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopRequest():
            found.append(signal.getsignal(signal.SIGTERM) is before)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [True]


def test_nohup_keeps_sighup_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.received
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
