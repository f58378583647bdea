"""The work of a step, whose rows and caches hold less than the largest that a recipe can need.

Programs are planned for the largest arrays: rows of the longest trunk and the longest branch, and caches of as many
positions. The time of a step is that of the rows that it has, whose positions see fewer others, and of the caches'
blocks that are filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fr3e_jax.planning.compile import ProgramPlan, with_floor
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.lane_use import LaneUse
from fr3e_jax.planning.topology import Topology
from fr3e_jax.planning.workload import Amounts, largest_micro_batch, seen_positions


def of_a_step(
    plans: Sequence[ProgramPlan], estimator: Estimator, amounts: Amounts, use: LaneUse, topology: Topology
) -> list[ProgramPlan]:
    """The plans with the least times that their programs have in a step with these amounts."""
    with_rows = [with_rows_of_a_step(plan, estimator, amounts, topology) for plan in plans]
    return [with_caches_of_a_step(plan, estimator, use, topology) for plan in with_rows]


def with_rows_of_a_step(plan: ProgramPlan, estimator: Estimator, amounts: Amounts, topology: Topology) -> ProgramPlan:
    """The plan of a program with the FLOPs, and so the least time, that it has for the rows of a step.

    Only ``score`` and ``accumulate`` change: attention takes as much less of their FLOPs as positions see fewer others.
    Matrix products are those of the planned rows.
    """
    seen = {"score": amounts.score_seen, "accumulate": amounts.seen}.get(plan.name, 0.0)
    if not seen:
        return plan
    a, largest = estimator.a, seen_positions(largest_micro_batch(estimator.config, estimator.train.batch_shards))
    of_a_position = lambda others: estimator.active_kernels + 2 * others * a.num_heads * a.head_dim * a.num_layers
    share = min(of_a_position(seen) / of_a_position(largest), 1.0)
    return with_floor(replace(plan, flops=int(plan.flops * share)), topology)


def with_caches_of_a_step(plan: ProgramPlan, estimator: Estimator, use: LaneUse, topology: Topology) -> ProgramPlan:
    """The plan of ``decode`` or ``explore`` with the bytes, and so the least time, of the blocks that its steps read.

    Other programs do not change, nor do decode steps without the fused kernel: XLA's products read caches whole.
    """
    if plan.name not in ("decode", "explore") or not estimator.fuses_steps:
        return plan
    explore = plan.name == "explore"
    trunks, rings = estimator.caches(explore)
    reads = use.explore_reads if explore else use.decode_reads
    spared = trunks * (1 - reads.trunks) + rings * (0.5 - reads.rings)  # planned with rings half full
    return with_floor(replace(plan, read_bytes=int(plan.read_bytes - plan.steps * spared)), topology)
