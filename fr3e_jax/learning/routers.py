"""The routers of a network with experts in an update: the loss that balances them, and their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fr3e_jax.learning.packing import MicroBatch
from fr3e_jax.policy.router_sums import Balance
from fr3e_jax.programs.train_programs import TrainPrograms

ROUTER_MEANS = {"router_entropy": "router/entropy", "routes_changed": "router/changed_routes"}
"""Sums over loss tokens that the gradient program returns -> metrics that hold their means."""

ROUTER_LOSS = {"balance": "loss/balance"}
"""The same of an update's loss, of which the sum is the metric."""


def balance_of(coefficient: float, programs: TrainPrograms, micros: Sequence[MicroBatch]) -> tuple[Balance, ...]:
    """The loss for balanced experts over the tokens of a mini-batch that train; () with coefficient 0.

    Where their routes are recorded, the experts' shares are those of the whole mini-batch, counted before its first
    pass, and the loss does not depend on the cut into micro-batches. Else each micro-batch reads its own shares.
    """
    if not coefficient:
        return ()
    tokens = sum(micro.loss_tokens for micro in micros)
    if micros[0].batch.rows.branch_routes is None:
        return (Balance(coefficient, tokens),)
    counts = jax.device_get([programs.count_routes(micro.batch) for micro in micros])
    return (Balance(coefficient, tokens, np.sum(counts, axis=0, dtype=np.int64)),)


def load_metrics(sums_of_calls: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The load of the busiest experts in a mini-batch; ``sums_of_calls``: of each micro-batch, with its expert_tokens.

    ``expert_tokens`` leaves the sums. A load is a multiple of the even share, which is 1; the largest possible one is
    the number of experts over those of a token. (MaxVio of Wang et al. 2024 is a load less 1.) {} without experts.
    """
    counts = [sums.pop("expert_tokens") for sums in sums_of_calls if "expert_tokens" in sums]
    if not counts:
        return {}
    tokens = np.sum(counts, axis=0, dtype=np.int64)  # [L, X]
    even = np.maximum(tokens.sum(axis=1), 1) / tokens.shape[1]
    busiest = tokens.max(axis=1) / even
    return {"router/busiest_expert": float(busiest.mean()), "router/busiest_expert_max": float(busiest.max())}


def router_metrics(sums_of_calls: Sequence[dict[str, Any]], tokens: int) -> dict[str, float]:
    """All metrics of routers, of one update with ``tokens`` loss tokens; {} without experts. See `load_metrics`."""
    loads, totals = load_metrics(sums_of_calls), {}
    for sums, over in ((ROUTER_MEANS, tokens), (ROUTER_LOSS, 1)):
        for name in sums.keys() & sums_of_calls[0].keys():
            totals[sums[name]] = sum(float(sums[name]) for sums in sums_of_calls) / over
    return totals | loads


def mean_loads(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """`load_metrics` of several updates: their mean, and of the largest load the largest."""
    over = {name: max if name.endswith("_max") else np.mean for name in (updates or [{}])[0]}
    return {name: float(of([loads[name] for loads in updates])) for name, of in over.items()}
