"""Idle time is the time in which no program has results outstanding and no call runs."""

from __future__ import annotations

import threading

import pytest

from fr3e_jax.runs.idle_time import InFlight


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Result:
    """A device array that is there when the test says so."""

    def __init__(self, error: Exception | None = None):
        self.ready, self.error = threading.Event(), error

    def block_until_ready(self) -> None:
        assert self.ready.wait(10)
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stages() -> list[str]:
    return ["one"]


@pytest.fixture
def in_flight(clock, stages):
    with InFlight(lambda: stages[-1], clock) as found:
        yield found


def finish(in_flight: InFlight, *results: Result) -> None:
    """Let results be there, and wait until that was noticed."""
    for result in results:
        result.ready.set()
    probe = Result()
    probe.ready.set()
    in_flight._begin()
    in_flight._results.put([probe])
    while in_flight._under_way:
        pass


def test_the_host_s_work_beside_a_program_is_not_idle(in_flight, clock, stages):
    result = Result()
    program = in_flight.program(lambda: [result])
    clock.now += 1
    assert program() == [result]
    clock.now += 2  # beside it
    finish(in_flight, result)
    stages.append("two")
    clock.now += 4
    in_flight.program(lambda: [])()
    finish(in_flight)
    clock.now += 8
    in_flight.end_step()
    assert in_flight.idle_seconds == {"one": 1.0, "two": 12.0}


def test_programs_overlap_each_other_and_calls(in_flight, clock):
    first, second = Result(), Result()
    in_flight.program(lambda: [first])()
    clock.now += 1
    in_flight.program(lambda: [second])()

    def grades():
        clock.now += 2

    in_flight.call(grades)()
    clock.now += 4
    finish(in_flight, first, second)
    clock.now += 8
    in_flight.call(grades)()
    in_flight.end_step()
    assert in_flight.idle_seconds == {"one": 8.0}


def test_donated_or_failed_results_end_their_program(in_flight, clock):
    gone = Result(RuntimeError("Array has been deleted"))
    in_flight.program(lambda: [gone])()
    finish(in_flight, gone)
    clock.now += 1

    def fails():
        clock.now += 2
        raise KeyError

    for wrapped in (in_flight.call(fails), in_flight.program(fails)):
        with pytest.raises(KeyError):
            wrapped()
    clock.now += 4
    in_flight.end_step()
    assert in_flight.idle_seconds == {"one": 5.0}


def test_other_threads_are_not_part_of_a_step(in_flight, clock):
    def elsewhere():
        clock.now += 1

    thread = threading.Thread(target=in_flight.call(elsewhere))
    thread.start()
    thread.join()
    in_flight.end_step()
    assert in_flight.idle_seconds == {"one": 1.0}
