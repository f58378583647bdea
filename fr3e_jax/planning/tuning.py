"""Settings that fit better: changes that shrink a program, and a search over mesh shapes and micro-batch sizes.

A search estimates many candidates, compiles the best few, and recommends one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.compile import ProgramPlan, estimated_plan
from fr3e_jax.planning.estimate import Estimate, Estimator
from fr3e_jax.planning.topology import Topology
from fr3e_jax.planning.workload import Assumptions, step_amounts
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.programs.mesh import MeshMismatch

_LEAST_RESPONSE = 1024
_TRAINING = ("score", "accumulate", "apply")
_TENSOR = (1, 2, 4, 8, 16)
_ROWS = (1, 2, 4)  # of a micro-batch, for each batch shard
_COMFORTABLE = 0.9  # share of HBM; candidates with a larger estimate are tried last

# The programs that are estimated to rank a candidate, and compiled to confirm it.
TRAINING, ROLLOUTS = ("accumulate",), ("decode", "explore")


@dataclass(frozen=True)
class Change:
    """A setting with its new value, and the estimated bytes that it saves on each device."""

    setting: str
    value: str
    saved_bytes: int
    keeps_results: bool  # false if it changes the sampled tokens or the training

    def __str__(self) -> str:
        return f"{self.setting}={self.value}"


def changed(config: Config, **settings: object) -> Config:
    """A copy of the settings with ``section__field=value``."""
    config = copy.deepcopy(config)
    for path, value in settings.items():
        section, name = path.split("__")
        setattr(getattr(config, section), name, value)
    return config


def advise(config: Config, architecture: Architecture, devices: int, name: str, count: int = 3) -> list[Change]:
    """The ``count`` changes that shrink program ``name`` most; changes that keep the results come first."""
    before = _total(Estimator(config, architecture, devices).of(name))
    found = []
    for path, value, keeps_results in _candidates(config, architecture, name):
        try:
            after = _total(Estimator(changed(config, **{path: value}), architecture, devices).of(name))
        except (MeshMismatch, ValueError):
            continue  # no such mesh
        if after < before:
            found.append(Change(path.replace("__", "."), str(value), int(before - after), keeps_results))
    return sorted(found, key=lambda change: (not change.keeps_results, -change.saved_bytes))[:count]


def _total(estimate: Estimate) -> float:
    return estimate.peak_bytes + sum(estimate.resident.values())


def _candidates(config: Config, a: Architecture, name: str) -> Iterator[tuple[str, object, bool]]:
    """Changes to try: (section__field, value, whether the results stay the same)."""
    yield from _of_training(config) if name in _TRAINING else _of_rollouts(config, a)
    for tensor in (2, 4, 8):
        if tensor > config.mesh.tensor and a.num_heads % tensor == 0:
            yield "mesh__tensor", tensor, True
    if config.mesh.replica > 1:
        yield "mesh__replica", 1, True
    if config.model.compute_dtype == "float32":
        yield "model__compute_dtype", "bfloat16", False
    if config.model.param_dtype == "float32":
        yield "model__param_dtype", "bfloat16", False
    if config.rollout.max_response_tokens >= 2 * _LEAST_RESPONSE:
        yield "rollout__max_response_tokens", config.rollout.max_response_tokens // 2, False


def _of_training(config: Config) -> Iterator[tuple[str, object, bool]]:
    training = config.training
    if training.remat != "block":
        yield "training__remat", "block", True
    if not training.attention_block or training.attention_block > 512:
        yield "training__attention_block", 512, True
    if training.token_chunk > 256:
        yield "training__token_chunk", 256, True
    # One row for each shard: a smaller micro-batch would not shrink the program further.
    yield "training__micro_batch_tokens", config.data.max_prompt_tokens, True


def _of_rollouts(config: Config, a: Architecture) -> Iterator[tuple[str, object, bool]]:
    rollout = config.rollout
    for tensor in (2, 4, 8):
        if tensor > config.mesh.rollout_tensor and a.num_heads % tensor == 0:
            yield "mesh__rollout_tensor", tensor, True
    if rollout.param_dtype == "" and config.model.param_dtype == "float32":
        yield "rollout__param_dtype", "bfloat16", False
    for name, least in (("trunk_slots", 1), ("lanes_per_trunk", 1), ("prompts_per_round", 1)):
        if getattr(rollout, name) > least:
            yield f"rollout__{name}", getattr(rollout, name) // 2, True


@dataclass(frozen=True)
class Candidate:
    """Settings to try, with their estimate."""

    settings: dict[str, int]  # section__field: value
    seconds: float  # of one training step
    share: float  # of HBM that the largest program holds

    @property
    def text(self) -> str:
        return " ".join(f"{path.replace('__', '.')}={value}" for path, value in self.settings.items())


def training_settings(config: Config, topology: Topology, a: Architecture) -> Iterator[dict[str, int]]:
    """Meshes that divide the network, each with a few micro-batch sizes."""
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
    """Meshes for rollouts: copies of the weights, each split into tensor shards."""
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
    """Candidates in the order to try: those that fit comfortably, fastest first; then the others, smallest first."""
    found = []
    for one in settings:
        try:
            trial = changed(config, **one)
            estimator = Estimator(trial, architecture, topology.devices)
            plans = [estimated_plan(name, estimator.of(name), topology) for name in names]
        except (MeshMismatch, ValueError):
            continue  # these devices have no such mesh
        amounts = step_amounts(trial, assumed, estimator.train.batch_shards)
        handled = {"accumulate": amounts.padded_positions, "decode": amounts.base_tokens}
        handled["explore"] = amounts.explored_tokens
        seconds = sum(handled[plan.name] / plan.positions * plan.floor_seconds for plan in plans)
        found.append(Candidate(one, seconds, max(plan.share for plan in plans)))
    roomy = sorted((c for c in found if c.share <= _COMFORTABLE), key=lambda c: c.seconds)
    return roomy + sorted((c for c in found if c.share > _COMFORTABLE), key=lambda c: c.share)


@dataclass(frozen=True)
class Choice:
    """The outcome of a search."""

    chosen: Candidate | None  # the first whose compiled programs fit
    plans: list[ProgramPlan]  # of the chosen candidate
    refused: list[Candidate]  # compiled before it, and too large
    considered: int  # candidates that were estimated


def choose(
    candidates: Sequence[Candidate], compiled: Callable[[Candidate], list[ProgramPlan]], most: int = 3
) -> Choice:
    """Compile at most ``most`` candidates in their order, until one fits."""
    refused = []
    for candidate in candidates[:most]:
        plans = compiled(candidate)
        if all(plan.fits for plan in plans):
            return Choice(candidate, plans, refused, len(candidates))
        refused.append(candidate)
    return Choice(None, [], refused, len(candidates))
