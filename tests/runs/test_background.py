"""The worker beside the loop: order of calls, the promise of `drain`, and errors that must not be lost."""

from __future__ import annotations

import threading

import pytest

from fr3e_jax.runs import background as background_module
from fr3e_jax.runs.background import Background, WriteFailed


def disk_full() -> None:
    raise OSError("no space left on device")


def test_writes_and_calls_run_in_order_on_one_thread():
    done = []
    note = lambda name: done.append((name, threading.get_ident()))
    with Background() as background:
        background.write("a", note, "a")
        answer = background.call(lambda: note("b") or 7)
        background.write("c", note, "c")
        background.drain()
        assert answer.result() == 7
    names, threads = zip(*done, strict=True)
    assert names == ("a", "b", "c") and len(set(threads)) == 1 and threads[0] != threading.get_ident()


def test_drain_returns_when_everything_is_written():
    gate, done = threading.Event(), []
    with Background() as background:
        background.write("first", gate.wait)
        for number in range(5):
            background.write("number", done.append, number)
        threading.Timer(0.02, gate.set).start()
        background.drain()
        assert done == list(range(5))


def test_a_failed_write_stops_later_ones_and_raises_with_its_reason():
    done = []
    background = Background()
    background.write("the rollouts of step 3", disk_full)
    with pytest.raises(WriteFailed, match="the rollouts of step 3 failed .*OSError: no space left.*--resume") as found:
        background.drain()
    assert isinstance(found.value.__cause__, OSError)
    with pytest.raises(WriteFailed, match="step 3"):
        background.write("the metrics of step 3", done.append, 3)
    with pytest.raises(WriteFailed, match="step 3"):
        background.drain()
    with pytest.raises(WriteFailed, match="step 3"), background:
        pass
    assert done == []


def test_writes_queued_after_a_failed_one_are_not_made():
    gate, done = threading.Event(), []
    background = Background()
    background.write("first", gate.wait)
    background.write("second", disk_full)
    background.write("third", done.append, 3)
    gate.set()
    with pytest.raises(WriteFailed, match="second"):
        background.drain()
    assert done == []


def test_leaving_with_another_error_writes_the_rest_and_keeps_that_error():
    done = []
    with pytest.raises(KeyError), Background() as background:
        background.write("a", done.append, 1)
        background.write("b", disk_full)
        raise KeyError
    assert done == [1]


def test_an_error_of_a_call_belongs_to_its_future_alone():
    with Background() as background:
        future = background.call(disk_full)
        background.write("a", lambda: None)
        background.drain()
        with pytest.raises(OSError, match="no space"):
            future.result()


@pytest.mark.parametrize(
    ("limit", "value", "held"), [("_MOST_WAITING", 2, 0), ("MOST_BYTES", 10, 4)], ids=["writes", "bytes"]
)
def test_writes_wait_when_too_much_is_queued(monkeypatch, limit, value, held):
    monkeypatch.setattr(background_module, limit, value)
    gate, done = threading.Event(), []
    with Background() as background:
        for _ in range(2):
            background.write("held", gate.wait, size_bytes=held)
        hand_over = lambda: (background.write("late", done.append, 1, size_bytes=held), done.append("handed over"))
        late = threading.Thread(target=hand_over)
        late.start()
        late.join(0.05)
        waited = late.is_alive() and not done
        gate.set()
        late.join()
        background.drain()
        assert waited
        background.write("larger than the bound", done.append, 2, size_bytes=11)
    assert set(done) == {1, 2, "handed over"}


def test_a_failed_write_of_one_process_is_raised_on_all_and_by_none_alone():
    """Two workers as two processes have them; the second one's disk is full."""
    told = ["", ""]

    def gather(index):
        def all_tell(own):
            told[index] = own
            return list(told)

        return all_tell

    first, second = (Background(gather(index)) for index in range(2))
    second.write("the rollouts of step 3", disk_full)
    second._finish()
    second.write("the rollouts of step 4", lambda: None)
    with pytest.raises(WriteFailed, match="^writing the rollouts of step 3 failed"):
        second.drain()
    with pytest.raises(WriteFailed, match="^process 1: writing the rollouts of step 3 failed .*no space left"):
        first.check()
