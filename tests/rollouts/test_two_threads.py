"""Two threads give the rollouts of one, and the caller's thread alone is told; a failure in either ends both."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from fr3e_jax.rollouts import two_threads
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Branch, Sampling, TrunkRequest
from fr3e_jax.rollouts.two_threads import sample_in_two_threads, two_threads_pay

one_device = pytest.mark.skipif(jax.device_count() > 1, reason="two threads are for one device")


@pytest.fixture(scope="module")
def engine(session) -> RolloutEngine:
    return RolloutEngine(session.sampler.engine.programs, trunk_slots=2, lanes_per_trunk=3, chunk=4, seed=7)


@pytest.fixture(scope="module")
def requests() -> list[TrunkRequest]:
    found = []
    for i, length in enumerate([3, 17, 1, 9, 20]):
        trunk = ((i + 3 * np.arange(length)) % 20 + 2).astype(np.int32)
        branches = [Branch(length, (0, 1, i, m), 4 + 3 * ((i + m) % 4), Sampling(stop_ids=(1,))) for m in range(4)]
        found.append(TrunkRequest(trunk, branches))
    return found


@one_device
def test_rollouts_are_those_of_one_thread_and_the_caller_is_told_each_once(engine, params, requests):
    expected, _ = engine.sample(params, requests)
    told = {}

    def ended(rollouts):
        assert threading.current_thread() is threading.main_thread()
        for request, branch, rollout in rollouts:
            assert (request, branch) not in told
            told[request, branch] = rollout

    found = sample_in_two_threads(engine, params, requests, ended)
    for i, row in enumerate(expected):
        for m, wanted in enumerate(row):
            assert found[i][m] is told[i, m]
            np.testing.assert_array_equal(found[i][m].token_ids, wanted.token_ids)
            np.testing.assert_allclose(found[i][m].logprobs, wanted.logprobs, rtol=1e-5, atol=1e-5)


def watched(engine, calls: list, broken: int | None = None) -> SimpleNamespace:
    """``engine``, which notes the thread of each call, and the end of a call; the call of part ``broken`` raises."""

    def sample(params, requests, select, ended):
        part = int(threading.current_thread() is not threading.main_thread())
        calls.append(part)
        if part == broken:
            raise ZeroDivisionError(f"thread {part}")
        try:
            return engine.sample(params, requests, select, ended)
        finally:
            calls.append(f"end of {part}")

    return SimpleNamespace(sample=sample)


@one_device
@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_of_one_thread_is_raised_after_the_other_has_ended(engine, params, requests, broken):
    calls = []
    with pytest.raises(ZeroDivisionError, match=f"thread {broken}"):
        sample_in_two_threads(watched(engine, calls, broken), params, requests, lambda rollouts: None)
    assert sorted(map(str, calls)) == ["0", "1", f"end of {1 - broken}"]


@one_device
@pytest.mark.parametrize("part", [0, 1])
def test_an_interruption_while_rollouts_are_told_ends_both_threads(engine, params, requests, part):
    calls, told = [], []

    def ended(rollouts):
        told.append(rollouts[0][0] % two_threads.THREADS)
        if told[-1] == part:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample_in_two_threads(watched(engine, calls), params, requests, ended)
    assert told.count(part) == 1
    assert sorted(map(str, calls)) == ["0", "1", "end of 0", "end of 1"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fr3e-sampling")]


@one_device
def test_an_interrupted_caller_has_the_other_thread_give_up(engine, params, requests):
    ended_early = []

    def sample(params, requests, select, ended):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        try:
            for _ in range(1000):
                ended([(0, 0, None)])
                time.sleep(0.01)
        except two_threads.Abandoned:
            ended_early.append(True)
            raise

    with pytest.raises(KeyboardInterrupt):
        sample_in_two_threads(SimpleNamespace(sample=sample), params, requests, lambda rollouts: None)
    assert ended_early


@one_device
@pytest.mark.parametrize(
    ("cores", "devices", "backend", "requested", "pays"),
    [(2, 1, "cpu", 5, True), (1, 1, "cpu", 5, False), (2, 8, "cpu", 5, False), (2, 1, "tpu", 5, False)]
    + [(8, 1, "cpu", 3, True), (8, 1, "cpu", 2, False)],
)
def test_two_threads_need_a_second_core_one_device_and_work_for_both(
    engine, requests, monkeypatch, cores, devices, backend, requested, pays
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert two_threads_pay(engine, requests[:requested]) == pays
