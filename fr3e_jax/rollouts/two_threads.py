"""Requests without promotion, sampled in two threads, because decoding a small model on CPU keeps only one core busy.

Another core then decodes half of the requests. Tokens do not depend on it; the last digits of log-probs do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import jax

from fr3e_jax.policy.network import Params
from fr3e_jax.programs.rehearsal import current_rehearsal
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Ended, Rollout, TrunkRequest

THREADS = 2


class Abandoned(Exception):
    """The caller's thread has failed or was interrupted: nobody waits for these rollouts any more."""


def two_threads_pay(engine: RolloutEngine, requests: Sequence[TrunkRequest]) -> bool:
    """Whether there is a second core, one device, and work for the lanes of both threads, and this is no rehearsal."""
    if current_rehearsal() is not None:
        return False
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
      ended: as there; always called by the caller's thread, since a verifier may be bound to it.

    Raises:
      NonFiniteLogits, and what ``ended`` raises: after the other thread has come to an end, too.
    """
    others_ended: SimpleQueue[list[tuple[int, int, Rollout]] | None] = SimpleQueue()  # None: there are no more
    abandoned = threading.Event()

    def renumbered(part: int, rollouts: Sequence[tuple[int, int, Rollout]]) -> list[tuple[int, int, Rollout]]:
        return [(THREADS * request + part, branch, rollout) for request, branch, rollout in rollouts]

    def own_told(rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
        ended(renumbered(0, rollouts))
        while not others_ended.empty():
            if (more := others_ended.get()) is None:
                others_ended.put(None)  # for the loop below
                break
            ended(more)

    def others_told(rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
        if abandoned.is_set():
            raise Abandoned
        others_ended.put(renumbered(1, rollouts))

    def sampled_by_other() -> list[list[Rollout]]:
        try:
            return engine.sample(params, requests[1::THREADS], None, others_told)[0]
        finally:
            others_ended.put(None)

    results: list[list[Rollout]] = [[] for _ in requests]
    with ThreadPoolExecutor(1, thread_name_prefix="fr3e-sampling") as pool:
        other = pool.submit(sampled_by_other)
        try:
            results[0::THREADS] = engine.sample(params, requests[0::THREADS], None, own_told)[0]
            for rollouts in iter(others_ended.get, None):
                ended(rollouts)
            results[1::THREADS] = other.result()
        except BaseException:
            abandoned.set()
            raise
    return results


def _cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
