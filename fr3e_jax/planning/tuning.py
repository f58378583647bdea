"""Changes of settings that shrink a program which does not fit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.estimate import Estimate, Estimator
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.programs.mesh import MeshMismatch

_LEAST_RESPONSE = 1024
_TRAINING = ("score", "accumulate", "apply")


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
    for context in (2, 4, 8):
        if context > config.mesh.context:
            yield "mesh__context", context, True
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
