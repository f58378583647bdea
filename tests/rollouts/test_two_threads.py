"""Two threads give the rollouts of one; a failure in either ends both."""

from __future__ import annotations

import os
import threading
import time

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
def test_rollouts_are_those_of_one_thread_and_each_is_told_once(engine, params, requests):
    expected, _ = engine.sample(params, requests)
    told, threads, inside = {}, set(), threading.Lock()

    def ended(rollouts):
        assert inside.acquire(blocking=False), "both threads tell at once"
        if threading.get_ident() not in threads:
            time.sleep(0.3)  # long enough for the other thread to come, too
        threads.add(threading.get_ident())
        for request, branch, rollout in rollouts:
            assert (request, branch) not in told
            told[request, branch] = rollout
        inside.release()

    found = sample_in_two_threads(engine, params, requests, ended)
    assert len(threads) == 2
    for i, row in enumerate(expected):
        for m, wanted in enumerate(row):
            assert found[i][m] is told[i, m]
            np.testing.assert_array_equal(found[i][m].token_ids, wanted.token_ids)
            np.testing.assert_allclose(found[i][m].logprobs, wanted.logprobs, rtol=1e-5, atol=1e-5)


@one_device
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_thread_is_raised_after_the_other_has_ended(engine, params, requests, failing):
    told = []

    def ended(rollouts):
        part = rollouts[0][0] % two_threads.THREADS
        told.append(part)
        if part == failing:
            raise ZeroDivisionError(f"thread {part}")

    with pytest.raises(ZeroDivisionError, match=f"thread {failing}"):
        sample_in_two_threads(engine, params, requests, ended)
    assert told.count(failing) == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fr3e-sampling")]


@one_device
def test_an_interruption_of_the_own_thread_ends_the_other_one_early(engine, params, requests):
    told, waits = [], threading.Event()

    def ended(rollouts):
        part = rollouts[0][0] % two_threads.THREADS
        told.append(part)
        if part == 0:
            waits.set()
            raise KeyboardInterrupt

    many = [request for request in requests for _ in range(6)]
    with pytest.raises(KeyboardInterrupt):
        sample_in_two_threads(engine, params, many, ended)
    assert told.count(0) == 1
    assert told.count(1) < 15, "the other thread went on to its end"


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
