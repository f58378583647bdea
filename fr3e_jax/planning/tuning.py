"""Changes of settings from a fixed list, tried on the estimate: what shrinks a program, and what shortens a step."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.compile import estimated_plan
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.mesh_sizes import MeshSizes, check_meshes
from fr3e_jax.planning.step_time import Assumptions, Efficiency, expected_seconds, stages, step_amounts
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
    saved_time: float = 0.0  # of a step, 0 to 1; of changes that are made together, what all of them save

    def __str__(self) -> str:
        return f"{self.setting}={self.value}"

    def applied(self, config: Config) -> Config:
        """A changed copy of the settings."""
        section, name = self.setting.split(".")
        return replace(config, **{section: replace(getattr(config, section), **{name: self.value})})


def program_names(config: Config, estimator: Estimator) -> list[str]:
    """The names of the programs that a recipe runs, in the order of a step."""
    absent = set() if estimator.copies else {"reshard"}
    absent |= set() if config.explore.enabled else {"promote", "explore"}
    absent |= set() if config.teacher.path and config.teacher.place == "advantage" else {"teach"}
    return [name for name in PROGRAMS if name not in absent]


def advise(estimator: Estimator, name: str, count: int = 3) -> list[Change]:
    """The ``count`` changes that shrink program ``name`` most; changes that keep the results come first.

    They are ranked with the rows of the recipe, and measured with the rows that the changed recipe declares.
    """
    config, architecture, row = estimator.config, estimator.a, estimator.micro_batch
    before = estimator.of(name).total_bytes

    def saved(settings: Config, row: RowShape | None = row) -> int:
        return int(before - Estimator(settings, architecture, estimator.devices, row=row).of(name).total_bytes)

    singles = [[change] for change in _candidates(config, architecture, estimator.devices)]
    ranked = [(not change.keeps_results, -size, change) for [change], size in _tried(config, singles, saved)]
    best = sorted((entry for entry in ranked if entry[1] < 0), key=lambda entry: entry[:2])[:count]
    return [replace(change, saved_bytes=saved(change.applied(config), None)) for _, _, change in best]


def cheaper(
    estimator: Estimator, topology: Topology, assumed: Assumptions, efficiency: Efficiency | None = None
) -> list[Change]:
    """The changes that together shorten a step most and keep its results; empty if none fits and saves 3 % or more.

    Prompts of a round, slots and lanes are searched together. Where they are right, other settings are tried alone.
    """
    config, architecture, row = estimator.config, estimator.a, estimator.micro_batch

    def step(settings: Config) -> tuple[float, float]:
        """Expected seconds of a step, and the largest share of the memory."""
        estimator = Estimator(settings, architecture, topology.devices, assumed.response_tokens, row)
        check_meshes(settings.mesh, architecture, topology)
        plans = [estimated_plan(name, estimator, topology) for name in program_names(settings, estimator)]
        parts = stages(plans, step_amounts(settings, assumed, estimator.slots), separate=estimator.separate)
        return expected_seconds(parts, efficiency), max(plan.share for plan in plans)

    before, _ = step(config)
    singles = [[change] for change in _candidates(config, architecture, topology.devices) if change.keeps_results]
    for combinations in (_decoders(config, step_amounts(config, assumed, 1).prompts, estimator.roll), singles):
        tried = _tried(config, combinations, step)
        times = [(1 - seconds / before, changes) for changes, (seconds, share) in tried if share <= _ROOMY]
        most = max((saved for saved, _ in times), default=0.0)
        if most >= _WORTH:  # of those that save nearly as much, the one with the fewest changes
            enough = [(saved, changes) for saved, changes in times if saved >= most - _WORTH / 3]
            saved, changes = min(enough, key=lambda entry: (len(entry[1]), -entry[0]))
            return [replace(change, saved_time=saved) for change in changes]
    return []


def _tried(
    config: Config, combinations: Iterable[list[Change]], measure: Callable[[Config], Any]
) -> Iterator[tuple[list[Change], Any]]:
    """Changes with the measure of the changed settings, but for those that these devices or networks refuse."""
    for changes in combinations:
        with contextlib.suppress(ValueError):
            yield changes, measure(reduce(lambda settings, change: change.applied(settings), changes, config))


def _decoders(config: Config, prompts: float, sizes: MeshSizes) -> Iterator[list[Change]]:
    """Rounds of up to the ``prompts`` of a step, with numbers of slots and of lanes, in all combinations."""
    rounds = (2**power for power in range(2, math.ceil(math.log2(max(prompts, 2))) + 1))
    slots = (sizes.batch_shards * count for count in (1, 2, 3, 4, 6, 8, 12, 16))
    tried = {"prompts_per_round": rounds, "trunk_slots": slots, "lanes_per_trunk": (4, 6, 8, 12, 16, 24, 32, 48, 64)}
    now = {name: getattr(config.rollout, name) for name in tried}
    for combination in itertools.product(*({now[name], *values} for name, values in tried.items())):
        named = zip(tried, combination, strict=True)
        yield [Change(f"rollout.{name}", value) for name, value in named if value != now[name]]


def _candidates(config: Config, a: Architecture, devices: int) -> Iterator[Change]:
    """Changes to try, each alone; a value that is set already saves nothing."""
    training, rollout, mesh = config.training, config.rollout, config.mesh
    sizes = [size for size in _SIZES if devices > 1 and devices % size == 0]
    of_heads = [size for size in sizes if a.num_heads % size == 0]
    tried: dict[str, list] = {
        "mesh.tensor": of_heads,
        "mesh.rollout_tensor": of_heads,
        "mesh.context": sizes if mesh.expert == 1 else [],
        "mesh.replica": [1],
        "training.remat": ["none", "block"],
        "training.attention_block": [512] if not training.attention_block or training.attention_block > 512 else [],
        "training.token_chunk": [256],
        # One row for each shard, or twice as many: a still smaller micro-batch would not shrink the program further.
        "training.micro_batch_tokens": [config.data.max_prompt_tokens, 2 * training.micro_batch_tokens],
        "rollout.trunk_slots": [rollout.trunk_slots // 2 or 1],
        "rollout.lanes_per_trunk": [rollout.lanes_per_trunk // 2 or 1],
        "rollout.prompts_per_round": [rollout.prompts_per_round // 2 or 1],
    }
    yield from (Change(setting, value) for setting, values in tried.items() for value in values)
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
