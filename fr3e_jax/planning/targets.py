"""The programs of a run with abstract arguments, ready to be compiled for devices that need not exist.

They are those that the run itself declares (`Declarations`), of the largest shapes. No weight is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.trained_trunks import trains_trunks
from fr3e_jax.planning.workload import STOP_IDS, largest_micro_batch
from fr3e_jax.programs.program import Declarations, Declared, programs_of
from fr3e_jax.programs.shardings import abstract_arrays
from fr3e_jax.programs.train_programs import RecordedRoutes, TrainPrograms
from fr3e_jax.rollouts.declared_shapes import declared_shapes
from fr3e_jax.session.declared_programs import decoder_calls
from fr3e_jax.session.model import open_model
from fr3e_jax.session.teacher import open_teacher

PROGRAMS = ("reshard", "prefill", "decode", "promote", "explore", "score", "teach", "accumulate", "apply")
_OF_TRAINING = {"score": "_score", "teach": "_teacher_score", "accumulate": "_accumulate", "apply": "_apply"}
_OF_DECODING = {"prefill": "_prefill", "decode": "_chunk", "promote": "_promote", "explore": "_chunk"}


class Target(Declared):
    """One program to plan."""

    def lower(self) -> jax.stages.Lowered:
        with devices_of(self.arguments):
            return self.program.lower(*self.arguments, **self.options)


def devices_of(arguments: Any) -> AbstractContextManager:
    """A block that lowers programs for the devices of abstract arguments. From 0.11 on jax asks for them in kernels."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
    meshes = (sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding))
    mesh = next(meshes, None)
    return nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def device_bytes(tree: Any) -> int:
    """Bytes of abstract arrays on each device, by their shardings. Of uneven shards the largest counts."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        shape = leaf.sharding.shard_shape(leaf.shape) if getattr(leaf, "sharding", None) else leaf.shape
        total += int(np.prod(shape, dtype=np.int64)) * leaf.dtype.itemsize
    return total


class Programs:
    """All programs that a recipe compiles, on ``devices``."""

    def __init__(self, config: Config, devices: Sequence, vocab_size: int = 0):
        """``vocab_size``: size of the tokenizer, where neither ``model.path`` nor ``model.architecture`` gives it."""
        model, self.decoder = open_model(config, vocab_size, keeps_routes=True, devices=devices)
        self.config, self.architecture = config, model.architecture
        model = replace(model, teacher=open_teacher(config, self.architecture, model.mesh))
        self.weights = model.weights
        self.training: TrainPrograms = model.train_programs(config)
        self.teacher = None if model.teacher is None else model.teacher.abstract_params()
        self.trained = model.sharded_abstract_params()
        self.params = self.trained if model.base is None else model.base.abstract_below(self.trained)
        self.rollout_params = abstract_arrays(self.weights.abstract, self.weights.shardings)
        self.optimizer_state = self.training.abstract_arrays()["optimizer"]
        self.largest = largest_micro_batch(config, self.training.shards, self.architecture.key_cost)

    def target(self, name: str) -> Target:
        """The target of a program that the recipe runs (`fr3e_jax.planning.plan.program_names`)."""
        if name == "reshard":
            return Target(self.weights.reshard, (self.params,), {})
        if name in _OF_TRAINING:
            program, declared = programs_of(self.training)[_OF_TRAINING[name]], self._of_training
        else:
            program, declared = programs_of(self.decoder)[_OF_DECODING[name]], self._of_decoding
        calls = [each for each in declared if each.program is program]
        return Target(*calls[-1 if name == "explore" else 0])  # decode steps of explored rollouts are declared last

    @cached_property
    def _of_decoding(self) -> list[Declared]:
        shapes, declare = declared_shapes(self.config), Declarations()
        largest = replace(shapes, smaller=(), rings=shapes.rings[-1:], responses=shapes.responses[-1:])
        prompts_and_bases = decoder_calls(self.config, STOP_IDS)[1:3]  # the first evaluates
        self.decoder.declare(declare, self.rollout_params, largest, prompts_and_bases)
        return declare.programs()

    @cached_property
    def _of_training(self) -> list[Declared]:
        routes = RecordedRoutes(self.decoder.routes, self.decoder.routes_type) if self.decoder.routes else None
        options = {"trained_trunks": trains_trunks(self.config.explore), "routes": routes}
        batch, declare = self.training.abstract_batch(self.largest, **options), Declarations()
        self.training.declare(declare, [batch], balances=self.config.model.experts.balance_coefficient > 0)
        return declare.programs()
