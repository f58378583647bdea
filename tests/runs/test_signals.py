from __future__ import annotations

import os
import signal
import threading

import pytest

from fr3e_jax.runs.signals import Stopped, StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_stops_the_run_at_its_next_check(number):
    with StopRequest() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        for _ in range(2):
            with pytest.raises(Stopped, match=number.name):
                stop.check()


def test_the_first_signal_after_a_callback_asked_ends_nothing_at_once():
    with StopRequest() as stop:
        stop.ask("a callback")
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped, match="a callback"):
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
