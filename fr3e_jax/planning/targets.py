"""The programs of a run with abstract arguments, ready to be compiled for devices that need not exist.

They are those that the run itself declares (`Declarations`), of the largest shapes. No weight is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.trained_trunks import trains_trunks
from fr3e_jax.planning.workload import STOP_IDS, bases_per_prompt, largest_micro_batch
from fr3e_jax.policy.lora import Adapted
from fr3e_jax.programs.program import Declarations, Declared, Program, programs_of
from fr3e_jax.programs.shardings import abstract_arrays
from fr3e_jax.programs.train_programs import RecordedRoutes, TrainPrograms
from fr3e_jax.rollouts.declared_shapes import declared_shapes
from fr3e_jax.session.declared_programs import decoder_calls
from fr3e_jax.session.model import open_model
from fr3e_jax.session.teacher import open_teacher

PROGRAMS = ("reshard", "prefill", "decode", "promote", "explore", "score", "teach", "accumulate", "apply")
_OF_TRAINING = {"score": "_score", "teach": "_teacher_score", "accumulate": "_accumulate", "apply": "_apply"}
_OF_DECODING = {"prefill": "_prefill", "decode": "_chunk", "promote": "_promote", "explore": "_chunk"}


@dataclass(frozen=True)
class Target:
    """One program to plan."""

    name: str
    function: Program
    arguments: tuple
    options: dict[str, Any] = field(default_factory=dict)
    resident: dict[str, Any] = field(default_factory=dict)  # arrays of the run beside its arguments while it runs

    def lower(self):
        with devices_of(self.arguments):
            return self.function.lower(*self.arguments, **self.options)


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
        self.config, self.architecture, self.mesh = config, model.architecture, model.mesh
        model = replace(model, teacher=open_teacher(config, self.architecture, self.mesh))
        self.weights = model.weights
        self.training: TrainPrograms = model.train_programs(config)
        self.critic = model.critic_programs(config)
        self.teacher = {} if model.teacher is None else {"teacher": model.teacher.abstract_params()}
        self.trained, base = model.sharded_abstract_params(), model.base
        self.base = {} if base is None else {"base of the adapters": abstract_arrays(base.abstract, base.shardings)}
        self.params = self.trained if base is None else Adapted(*self.base.values(), self.trained)
        self.rollout_params = abstract_arrays(self.weights.abstract, self.weights.shardings)
        self.optimizer_state = self.training.abstract_arrays()["optimizer"]
        self.beside_policy = {"optimizer state": self.optimizer_state} | self._compared()
        self.largest = largest_micro_batch(config, self.training.shards, self.architecture.key_cost)

    def _compared(self) -> dict[str, Any]:
        """The reference policy, the teacher, and the critic with its optimizer, if the method has them."""
        config, arrays = self.config, dict(self.teacher)
        if config.kl.coefficient:
            arrays["reference policy"] = self.trained
        if self.critic is not None:
            arrays["critic and its optimizer"] = self.critic.abstract_arrays()
        return arrays

    def target(self, name: str) -> Target:
        """The target of a program that the recipe runs (`fr3e_jax.planning.plan.program_names`)."""
        if name == "reshard":
            return Target(name, self.weights.reshard, (self.params,), resident=self.beside_policy)
        declared = self._declared(name)
        beside = self._beside_training(name) if name in _OF_TRAINING else self._beside_sampling(name)
        return Target(name, *declared, resident=beside)

    def _declared(self, name: str) -> Declared:
        """The declaration of a program; of the two kinds of decode steps, those of explored rollouts come last."""
        owner, names, declared = (
            (self.training, _OF_TRAINING, self._of_training)
            if name in _OF_TRAINING
            else (self.decoder, _OF_DECODING, self._of_decoding)
        )
        program = programs_of(owner)[names[name]]
        return [each for each in declared if each.program is program][-1 if name == "explore" else 0]

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

    # -- arrays of the run beside a program --------------------------------------------------------------------------

    def _beside_sampling(self, name: str) -> dict[str, Any]:
        beside: dict[str, Any] = {}
        if not self.config.mesh.sampler_devices:
            beside = self.beside_policy | ({"weights of training": self.params} if self.weights.copies else {})
        if name == "promote":
            return beside | {"weights of rollouts": self.rollout_params}
        if name == "prefill":
            return beside | {"decoder": self._declared("decode").arguments[1]}
        if name == "decode":
            beside["prefilled prompts"] = self._results("prefill")._replace(routes=None)
        if self.config.explore.enabled:  # the bases of a round wait for exploration
            bases = self.config.rollout.prompts_per_round * bases_per_prompt(self.config)
            beside["promoted trunks"] = [self._results("promote")] * bases
        return beside

    def _beside_training(self, name: str) -> dict[str, Any]:
        without_teacher = {key: arrays for key, arrays in self.beside_policy.items() if key not in self.teacher}
        match name:
            case "apply":
                return self._compared() | self.base
            case "teach":
                return without_teacher | {"policy": self.params}
            case "accumulate" if self.config.teacher.place == "loss":
                return without_teacher
        return self.beside_policy

    def _results(self, name: str) -> Any:
        declared = self._declared(name)
        return declared.program.results(*declared.arguments, **declared.options)
