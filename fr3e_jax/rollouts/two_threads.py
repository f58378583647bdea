"""Requests without promotion, sampled in two threads, because decoding a small model on CPU keeps only one core busy.

Another core then decodes half of the requests. Tokens do not depend on it; the last digits of log-probs do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax

from fr3e_jax.policy.network import Params
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Ended, Rollout, TrunkRequest

THREADS = 2


class Abandoned(Exception):
    """The other thread has failed or was interrupted: nobody waits for these rollouts any more."""


def two_threads_pay(engine: RolloutEngine, requests: Sequence[TrunkRequest]) -> bool:
    """Whether there is a second core, one device, and work for the lanes of both threads."""
    if jax.default_backend() != "cpu" or jax.device_count() > 1 or _cores() < THREADS:
        return False
    return sum(len(request.branches) for request in requests) >= THREADS * engine.slots * engine.lanes


def sample_in_two_threads(
    engine: RolloutEngine, params: Params, requests: Sequence[TrunkRequest], ended: Ended
) -> list[list[Rollout]]:
    """`RolloutEngine.sample` without a selector, each thread with every second request; two decoders exist at a time.

    Args:
      engine: its `counts` are of no use afterwards, because both threads add to them.
      params, requests: as for `RolloutEngine.sample`.
      ended: as there; called by one thread at a time.

    Raises:
      NonFiniteLogits, and what ``ended`` raises: after the other thread has come to an end, too.
    """
    lock, abandoned = threading.Lock(), threading.Event()

    def sampled(part: int) -> list[list[Rollout]]:
        def told(rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
            with lock:
                if abandoned.is_set():
                    raise Abandoned
                ended([(THREADS * request + part, branch, rollout) for request, branch, rollout in rollouts])

        return engine.sample(params, requests[part::THREADS], None, told)[0]

    with ThreadPoolExecutor(1, thread_name_prefix="fr3e-sampling") as pool:
        other = pool.submit(sampled, 1)
        try:
            own = sampled(0)
            others = other.result()
        except BaseException:
            abandoned.set()
            raise
    results: list[list[Rollout]] = [[] for _ in requests]
    results[0::THREADS], results[1::THREADS] = own, others
    return results


def _cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
