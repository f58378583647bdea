from __future__ import annotations

import os
import signal
import threading

import pytest

from fr3e_jax.runs.signals import Stopped, StopRequest


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
