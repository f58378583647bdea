"""Mesh shapes and micro-batch sizes: many estimated, the best few compiled, one recommended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.advise import changed
from fr3e_jax.planning.compile import ProgramPlan, estimated_plan
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.topology import Topology
from fr3e_jax.planning.workload import Assumptions, step_amounts
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.programs.mesh import MeshMismatch

_TENSOR = (1, 2, 4, 8, 16)
_ROWS = (1, 2, 4)  # of a micro-batch, for each batch shard
_COMFORTABLE = 0.9  # of HBM: an estimate above it is tried last

# What is estimated to rank a candidate, and compiled to confirm it.
TRAINING, ROLLOUTS = ("accumulate",), ("decode", "explore")


@dataclass(frozen=True)
class Candidate:
    """Settings to try, with what they are estimated to give; seconds are of one training step."""

    settings: dict[str, int]  # section__field: value
    seconds: float
    share: float  # of HBM, of the largest program

    @property
    def text(self) -> str:
        return " ".join(f"{path.replace('__', '.')}={value}" for path, value in self.settings.items())


def training_settings(config: Config, topology: Topology, a: Architecture) -> Iterator[dict[str, int]]:
    """Meshes that divide the network, each with micro-batches of a few rows a shard."""
    positions = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    positions += config.rollout.max_response_tokens * config.explore.enabled
    for tensor in _TENSOR:
        inside = topology.chips_per_slice
        if a.num_heads % tensor or a.intermediate_size % tensor or inside % tensor:
            continue
        for replica in (topology.slices, 2 * topology.slices, 4 * topology.slices):
            if topology.devices % (replica * tensor):
                continue
            fsdp = topology.devices // replica // tensor
            if a.hidden_size % fsdp:
                continue
            for rows in _ROWS:
                yield {
                    "mesh__replica": replica,
                    "mesh__fsdp": fsdp,
                    "mesh__tensor": tensor,
                    "training__micro_batch_tokens": rows * replica * fsdp * positions,
                }


def rollout_settings(topology: Topology, a: Architecture) -> Iterator[dict[str, int]]:
    """Copies of the weights in so many tensor shards, for rollouts."""
    for tensor in _TENSOR:
        if a.num_heads % tensor == 0 and topology.chips_per_slice % tensor == 0:
            yield {"mesh__rollout_tensor": tensor, "mesh__rollout_fsdp": 1, "mesh__rollout_replica": -1}


def ranked(
    config: Config,
    architecture: Architecture,
    topology: Topology,
    settings: Iterator[dict[str, int]],
    names: Sequence[str],
    assumed: Assumptions,
) -> list[Candidate]:
    """Candidates whose estimate leaves room first, the quickest of them first; then the others, the smallest first."""
    found = []
    for one in settings:
        try:
            trial = changed(config, **one)
            estimator = Estimator(trial, architecture, topology.devices)
            plans = [estimated_plan(name, estimator.of(name), topology) for name in names]
        except (MeshMismatch, ValueError):
            continue  # not a mesh of these devices
        amounts = step_amounts(trial, assumed, estimator.train.batch_shards)
        handled = {"accumulate": amounts.padded_positions, "decode": amounts.base_tokens}
        handled["explore"] = amounts.explored_tokens
        seconds = sum(handled[plan.name] / plan.positions * plan.floor_seconds for plan in plans)
        found.append(Candidate(one, seconds, max(plan.share for plan in plans)))
    roomy = sorted((c for c in found if c.share <= _COMFORTABLE), key=lambda c: c.seconds)
    return roomy + sorted((c for c in found if c.share > _COMFORTABLE), key=lambda c: c.share)


@dataclass(frozen=True)
class Choice:
    """The first candidate whose programs, compiled, fit; ``refused`` are those tried before it."""

    chosen: Candidate | None
    plans: list[ProgramPlan]
    refused: list[Candidate]
    considered: int


def choose(
    candidates: Sequence[Candidate], compiled: Callable[[Candidate], list[ProgramPlan]], most: int = 3
) -> Choice:
    """Compile candidates in their order, ``most`` at most, until one fits."""
    refused = []
    for candidate in candidates[:most]:
        plans = compiled(candidate)
        if all(plan.fits for plan in plans):
            return Choice(candidate, plans, refused, len(candidates))
        refused.append(candidate)
    return Choice(None, [], refused, len(candidates))
