"""Changes of settings from a fixed list, tried on the estimate: what shrinks a program, and what shortens a step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.compile import ProgramPlan, estimated_plan
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.layout_check import check_layout
from fr3e_jax.planning.step_time import Assumptions, stages, step_amounts
from fr3e_jax.planning.targets import PROGRAMS
from fr3e_jax.planning.topology import Topology
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.programs.mesh import MeshMismatch
from fr3e_jax.programs.row_shape import RowShape

_SIZES = (1, 2, 4, 8)  # of the mesh axes that are tried
_SHORTEST_RESPONSE = 1024
_ROOMY = 0.9  # share of HBM: a faster setting must leave the rest free, because estimates are not exact
_WORTH = 0.03  # of a step; a setting that saves less is not named


@dataclass(frozen=True)
class Change:
    """A setting with its new value."""

    setting: str
    value: str
    keeps_results: bool  # false if it changes the sampled tokens or the training
    saved_bytes: int = 0  # of a program, on each device
    saved_time: float = 0.0  # of a step, 0 to 1

    def __str__(self) -> str:
        return f"{self.setting}={self.value}"


def changed(config: Config, **settings: object) -> Config:
    """A copy of the settings with ``section__field=value``."""
    config = copy.deepcopy(config)
    for path, value in settings.items():
        section, name = path.split("__")
        setattr(getattr(config, section), name, value)
    return config


def program_names(config: Config, estimator: Estimator) -> list[str]:
    """The names of the programs that a recipe runs, in the order of a step."""
    absent = set() if estimator.copies else {"reshard"}
    absent |= set() if config.explore.enabled else {"promote", "explore"}
    return [name for name in PROGRAMS if name not in absent]


def advise(config: Config, architecture: Architecture, devices: int, name: str, count: int = 3) -> list[Change]:
    """The ``count`` changes that shrink program ``name`` most; changes that keep the results come first.

    They are ranked with the rows of ``config``, and measured with the rows that the changed recipe declares.
    """
    estimator = Estimator(config, architecture, devices)
    before, row = estimator.of(name).total_bytes, estimator.micro_batch

    def saved(path: str, value: object, row: RowShape | None = None) -> int:
        return int(
            before - Estimator(changed(config, **{path: value}), architecture, devices, row=row).of(name).total_bytes
        )

    ranked = []
    for path, value, keeps_results in _candidates(config, architecture):
        try:
            ranked.append((not keeps_results, -saved(path, value, row), path, value))
        except (MeshMismatch, ValueError):
            continue  # these devices have no such mesh
    ranked = [candidate for candidate in ranked if candidate[1] < 0]
    best = sorted(ranked, key=lambda candidate: candidate[:2])[:count]
    return [
        Change(path.replace("__", "."), str(value), not loses, saved(path, value)) for loses, _, path, value in best
    ]


def cheaper(config: Config, architecture: Architecture, topology: Topology, assumed: Assumptions) -> Change | None:
    """The change that shortens a step most and keeps its results; None if none fits and saves 3 % or more."""

    row = Estimator(config, architecture, topology.devices).micro_batch

    def step(settings: Config) -> tuple[float, Sequence[ProgramPlan]]:
        estimator = Estimator(settings, architecture, topology.devices, assumed.response_tokens, row)
        check_layout(estimator, topology)
        plans = [estimated_plan(name, estimator, topology) for name in program_names(settings, estimator)]
        parts = stages(plans, step_amounts(settings, assumed, estimator.lanes))
        return sum(stage.seconds for stage in parts), plans

    now, _ = step(config)
    changes = []
    for path, value, keeps_results in _candidates(config, architecture):
        try:
            seconds, plans = step(changed(config, **{path: value}))
        except (MeshMismatch, ValueError):
            continue
        saved = 1 - seconds / now
        if keeps_results and saved >= _WORTH and max(plan.share for plan in plans) <= _ROOMY:
            changes.append(Change(path.replace("__", "."), str(value), True, saved_time=saved))
    return max(changes, key=lambda change: change.saved_time, default=None)


def _candidates(config: Config, a: Architecture) -> Iterator[tuple[str, object, bool]]:
    """Changes to try: (section__field, value, whether the results stay the same)."""
    training, rollout, mesh = config.training, config.rollout, config.mesh
    for size in _SIZES:
        if size != mesh.tensor and a.num_heads % size == 0:
            yield "mesh__tensor", size, True
        if size != mesh.rollout_tensor and a.num_heads % size == 0:
            yield "mesh__rollout_tensor", size, True
        if size != mesh.context and mesh.expert == 1:
            yield "mesh__context", size, True
    if mesh.replica > 1:
        yield "mesh__replica", 1, True
    for remat in ("none", "block"):
        if training.remat != remat:
            yield "training__remat", remat, True
    if not training.attention_block or training.attention_block > 512:
        yield "training__attention_block", 512, True
    if training.token_chunk > 256:
        yield "training__token_chunk", 256, True
    # One row for each shard, or twice as many: a still smaller micro-batch would not shrink the program further.
    yield "training__micro_batch_tokens", config.data.max_prompt_tokens, True
    yield "training__micro_batch_tokens", 2 * training.micro_batch_tokens, True
    for name in ("trunk_slots", "lanes_per_trunk", "prompts_per_round"):
        size = getattr(rollout, name)
        yield f"rollout__{name}", 2 * size, True
        if size > 1:
            yield f"rollout__{name}", size // 2, True
    if rollout.param_dtype == "" and config.model.param_dtype == "float32":
        yield "rollout__param_dtype", "bfloat16", False
    for name in ("compute_dtype", "param_dtype"):
        if getattr(config.model, name) == "float32":
            yield f"model__{name}", "bfloat16", False
    if rollout.max_response_tokens >= 2 * _SHORTEST_RESPONSE:
        yield "rollout__max_response_tokens", rollout.max_response_tokens // 2, False
