"""Changes of settings from a fixed list, tried on the estimate: what shrinks a program, and what shortens a step."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.compile import estimated_plan
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.mesh_sizes import check_meshes
from fr3e_jax.planning.step_time import Assumptions, stages, step_amounts
from fr3e_jax.planning.targets import PROGRAMS
from fr3e_jax.planning.topology import Topology
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.programs.row_shape import RowShape

_SIZES = (1, 2, 4, 8)  # of the mesh axes that are tried
_SHORTEST_RESPONSE = 1024
_ROOMY = 0.9  # share of HBM: a faster setting must leave the rest free, because estimates are not exact
_WORTH = 0.03  # of a step; a setting that saves less is not named


@dataclass(frozen=True)
class Change:
    """A setting with its new value."""

    setting: str
    value: int | str
    keeps_results: bool = True  # false if it changes the sampled tokens or the training
    saved_bytes: int = 0  # of a program, on each device
    saved_time: float = 0.0  # of a step, 0 to 1

    def __str__(self) -> str:
        return f"{self.setting}={self.value}"

    def applied(self, config: Config) -> Config:
        """A changed copy of the settings."""
        config = copy.deepcopy(config)
        section, name = self.setting.split(".")
        setattr(getattr(config, section), name, self.value)
        return config


def program_names(config: Config, estimator: Estimator) -> list[str]:
    """The names of the programs that a recipe runs, in the order of a step."""
    absent = set() if estimator.copies else {"reshard"}
    absent |= set() if config.explore.enabled else {"promote", "explore"}
    return [name for name in PROGRAMS if name not in absent]


def advise(estimator: Estimator, name: str, count: int = 3) -> list[Change]:
    """The ``count`` changes that shrink program ``name`` most; changes that keep the results come first.

    They are ranked with the rows of the recipe, and measured with the rows that the changed recipe declares.
    """
    config, architecture, row = estimator.config, estimator.a, estimator.micro_batch
    before = estimator.of(name).total_bytes

    def saved(settings: Config, row: RowShape | None = row) -> int:
        return int(before - Estimator(settings, architecture, estimator.devices, row=row).of(name).total_bytes)

    ranked = [(not change.keeps_results, -size, change) for change, size in _tried(config, architecture, saved)]
    best = sorted((entry for entry in ranked if entry[1] < 0), key=lambda entry: entry[:2])[:count]
    return [replace(change, saved_bytes=saved(change.applied(config), None)) for _, _, change in best]


def cheaper(estimator: Estimator, topology: Topology, assumed: Assumptions) -> Change | None:
    """The change that shortens a step most and keeps its results; None if none fits and saves 3 % or more."""
    config, architecture, row = estimator.config, estimator.a, estimator.micro_batch

    def step(settings: Config) -> tuple[float, float]:
        """Seconds of a step, and the largest share of the memory."""
        estimator = Estimator(settings, architecture, topology.devices, assumed.response_tokens, row)
        check_meshes(settings.mesh, architecture, topology)
        plans = [estimated_plan(name, estimator, topology) for name in program_names(settings, estimator)]
        parts = stages(plans, step_amounts(settings, assumed, estimator.lanes))
        return sum(stage.seconds for stage in parts), max(plan.share for plan in plans)

    now, _ = step(config)
    changes = [
        replace(change, saved_time=1 - seconds / now)
        for change, (seconds, share) in _tried(config, architecture, step)
        if change.keeps_results and share <= _ROOMY and 1 - seconds / now >= _WORTH
    ]
    return max(changes, key=lambda change: change.saved_time, default=None)


def _tried(config: Config, a: Architecture, measure: Callable[[Config], Any]) -> Iterator[tuple[Change, Any]]:
    """Each change with the measure of the changed settings, but for those that these devices or networks refuse."""
    for change in _candidates(config, a):
        with contextlib.suppress(ValueError):
            yield change, measure(change.applied(config))


def _candidates(config: Config, a: Architecture) -> Iterator[Change]:
    """Changes to try."""
    training, rollout, mesh = config.training, config.rollout, config.mesh
    for size in _SIZES:
        if size != mesh.tensor and a.num_heads % size == 0:
            yield Change("mesh.tensor", size)
        if size != mesh.rollout_tensor and a.num_heads % size == 0:
            yield Change("mesh.rollout_tensor", size)
        if size != mesh.context and mesh.expert == 1:
            yield Change("mesh.context", size)
    if mesh.replica > 1:
        yield Change("mesh.replica", 1)
    for remat in ("none", "block"):
        if training.remat != remat:
            yield Change("training.remat", remat)
    if not training.attention_block or training.attention_block > 512:
        yield Change("training.attention_block", 512)
    if training.token_chunk > 256:
        yield Change("training.token_chunk", 256)
    # One row for each shard, or twice as many: a still smaller micro-batch would not shrink the program further.
    yield Change("training.micro_batch_tokens", config.data.max_prompt_tokens)
    yield Change("training.micro_batch_tokens", 2 * training.micro_batch_tokens)
    for name in ("trunk_slots", "lanes_per_trunk", "prompts_per_round"):
        size = getattr(rollout, name)
        yield Change(f"rollout.{name}", 2 * size)
        if size > 1:
            yield Change(f"rollout.{name}", size // 2)
    stored, compute = config.model.param_dtype, config.model.compute_dtype
    if rollout.param_dtype in ("", stored) and stored == "float32":
        yield Change("rollout.param_dtype", "bfloat16", keeps_results=compute == "bfloat16")
    if rollout.param_dtype == compute != stored:
        yield Change("rollout.param_dtype", stored)
    for name in ("compute_dtype", "param_dtype"):
        if getattr(config.model, name) == "float32":
            yield Change(f"model.{name}", "bfloat16", keeps_results=False)
    if rollout.max_response_tokens >= 2 * _SHORTEST_RESPONSE:
        yield Change("rollout.max_response_tokens", rollout.max_response_tokens // 2, keeps_results=False)
