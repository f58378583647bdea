"""The programs of a run with abstract arguments, ready to be compiled for devices that need not exist.

They are the same jitted functions of `DecoderPrograms`, `TrainPrograms` and `RolloutWeights` that a run calls. No
weight is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.micro_batch_shapes import declared_rows
from fr3e_jax.learning.trained_trunks import trains_trunks
from fr3e_jax.planning.workload import decoder_sizes, largest_micro_batch, promoted_rows
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.attention import KeyValue
from fr3e_jax.policy.lora import Adapted
from fr3e_jax.policy.router_sums import Balance
from fr3e_jax.policy.rows import Trunks
from fr3e_jax.programs.context_axis import batch_axes
from fr3e_jax.programs.decoder_state import DecoderSizes, DecodeState, cache_shape
from fr3e_jax.programs.frozen_teacher import Taught
from fr3e_jax.programs.mesh import make_mesh, separate_devices
from fr3e_jax.programs.program import Declarations, Declared, programs_of
from fr3e_jax.programs.shardings import abstract_arrays, cache_sharding, kept_hidden_sharding, replicated
from fr3e_jax.programs.train_programs import RecordedRoutes, TrainPrograms, TrainRows
from fr3e_jax.rollouts.declared_shapes import declared_shapes
from fr3e_jax.session.declared_programs import declare_all, decoder_calls
from fr3e_jax.session.model import configured_architecture, decoder_programs, model_on_meshes
from fr3e_jax.session.teacher import open_teacher

PROGRAMS = ("reshard", "prefill", "decode", "promote", "explore", "score", "teach", "accumulate", "apply")


@dataclass(frozen=True)
class Target:
    """One program to plan."""

    name: str
    function: Callable
    arguments: tuple
    options: dict[str, Any] = field(default_factory=dict)
    resident: dict[str, Any] = field(default_factory=dict)  # arrays of the run beside its arguments while it runs

    def lower(self):
        return self.function.lower(*self.arguments, **self.options)


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
        self.config, m = config, config.mesh
        self.architecture: Architecture = configured_architecture(config, vocab_size)
        training, sampling = separate_devices(list(devices), m.sampler_devices)
        self.mesh: Mesh = make_mesh(m.replica, m.fsdp, m.tensor, training, context=m.context, expert=m.expert)
        model, self.decoding = model_on_meshes(config, self.architecture, self.mesh, sampling, m.rollout_tensor)
        model = replace(model, teacher=open_teacher(config, self.architecture, self.mesh))
        self.weights = model.weights
        self.decoder = decoder_programs(config.model, model, self.decoding, keeps_routes=True)
        self.training: TrainPrograms = model.train_programs(config)
        self.critic = model.critic_programs(config)
        self.teacher = {} if model.teacher is None else {"teacher": model.teacher.abstract_params()}
        self.trained, self.gradients = model.sharded_abstract_params(), self.training.abstract_gradients()
        base = model.base
        self.base = {} if base is None else {"base of the adapters": abstract_arrays(base.abstract, base.shardings)}
        self.params = self.trained if base is None else Adapted(*self.base.values(), self.trained)
        self.rollout_params = abstract_arrays(self.weights.abstract, self.weights.shardings)
        self.optimizer_state = self.training.abstract_arrays()["optimizer"]
        self.beside_policy = {"optimizer state": self.optimizer_state} | self._compared()
        self.slots = self.decoder.round_up(config.rollout.trunk_slots)
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
        return getattr(self, f"_{name}")()

    def of_a_run(self) -> list[Declared]:
        """All programs that a run with these settings may compile, tools left out."""
        config, key_cost = self.config, self.architecture.key_cost
        shapes = replace(declared_shapes(config), rows=declared_rows(config, self.training.shards, key_cost))
        parts = self.weights, self.decoder, self.training, self.critic
        return declare_all(Declarations(), config, shapes, decoder_calls(config, stops=1), *parts)

    # -- arguments ---------------------------------------------------------------------------------------------------

    def _array(self, shape: tuple[int, ...], dtype: Any, mesh: Mesh, *axes: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))

    def _result(self, function: Callable, *arguments, **options) -> Any:
        """Shapes, types and shardings of a program's results."""
        out = function.lower(*arguments, **options).out_info
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), out)

    def _trunk_ids(self, length: int) -> jax.ShapeDtypeStruct:
        return self._array((self.slots, length), np.int32, self.decoding, batch_axes(self.decoding))

    def _trunks(self, rows: int, length: int) -> Trunks:
        """Abstract caches of ``rows`` trunks of ``length`` positions, as `prefill` and `promote` return them."""
        a, compute = self.architecture, np.dtype(self.config.model.compute_dtype)
        by_head, by_width = cache_sharding(self.decoding, a), kept_hidden_sharding(self.decoding, a)
        key = jax.ShapeDtypeStruct((rows, a.num_kv_heads, a.head_dim, length), compute, sharding=by_head)
        value = jax.ShapeDtypeStruct((rows, a.num_kv_heads, length, a.head_dim), compute, sharding=by_head)
        hidden = jax.ShapeDtypeStruct((rows, length, a.hidden_size), compute, sharding=by_width)
        return Trunks((KeyValue(key, value),) * a.num_layers, hidden)

    def sizes(self, explore: bool = False) -> DecoderSizes:
        return decoder_sizes(self.config, self.slots, explore=explore)

    def state(self, sizes: DecoderSizes) -> DecodeState:
        """The abstract `DecodeState` of a decoder of these sizes."""
        like = self._trunks(self.slots, sizes.trunk_capacity)
        return self._result(programs_of(self.decoder)["_empty"], cache_shape(like), sizes)

    def _beside_rollouts(self) -> dict[str, Any]:
        """Other arrays of a run that are on the devices while rollouts are sampled."""
        if self.config.mesh.sampler_devices:
            return {}
        copied = {"weights of training": self.params} if self.weights.copies else {}
        return self.beside_policy | copied

    def _promoted(self) -> Any:
        """The promoted trunks of a round's expanded bases, which wait for exploration."""
        rows, capacity = promoted_rows(self.config, self.decoder.shards)
        shapes, shardings = self._trunks(rows, capacity), self.decoder.promoted
        return [abstract_arrays(shapes, shardings)] * self.config.rollout.prompts_per_round

    # -- programs ----------------------------------------------------------------------------------------------------

    def _reshard(self) -> Target:
        return Target("reshard", self.weights.reshard, (self.params,), resident=self.beside_policy)

    def _prefill(self) -> Target:
        sizes = self.sizes()
        ids = self._trunk_ids(sizes.trunk_capacity)
        return Target(
            "prefill",
            programs_of(self.decoder)["_prefill"],
            (self.rollout_params, ids),
            resident=self._beside_rollouts() | {"decoder": self.state(sizes)},
        )

    def _decode(self) -> Target:
        sizes = self.sizes()
        waiting = {"prefilled prompts": self._trunks(self.slots, sizes.trunk_capacity)}
        promoted = {"promoted trunks": self._promoted()} if self.config.explore.enabled else {}
        return self._decode_chunk("decode", sizes, waiting | promoted)

    def _explore(self) -> Target:
        return self._decode_chunk("explore", self.sizes(explore=True), {"promoted trunks": self._promoted()})

    def _decode_chunk(self, name: str, sizes: DecoderSizes, beside: dict[str, Any]) -> Target:
        rollout, state = self.config.rollout, self.state(sizes)
        return Target(
            name,
            programs_of(self.decoder)["_chunk"],
            (self.rollout_params, state, self._array((), np.int32, self.decoding)),
            {"steps": rollout.decode_chunk, "filtered": rollout.top_p < 1},
            resident=self._beside_rollouts() | beside,
        )

    def _promote(self) -> Target:
        rows, capacity = promoted_rows(self.config, self.decoder.shards)
        chosen = self._array((rows,), np.int32, self.decoding)
        return Target(
            "promote",
            programs_of(self.decoder)["_promote"],
            (self.state(self.sizes()), chosen, chosen),
            {"capacity": capacity},
            resident=self._beside_rollouts() | {"weights of rollouts": self.rollout_params},
        )

    def _micro_batch(self) -> TrainRows:
        routes = RecordedRoutes(self.decoder.routes, self.decoder.routes_type) if self.decoder.routes else None
        return self.training.abstract_batch(
            self.largest, trained_trunks=trains_trunks(self.config.explore), routes=routes
        )

    def _scalar(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), np.float32, sharding=replicated(self.mesh))

    def _balance(self) -> list[Balance]:
        if not self.config.model.experts.balance_coefficient:
            return []
        routes = self._array((self.architecture.num_experts,), np.float32, self.mesh) if self.decoder.routes else None
        return [Balance(self._scalar(), self._scalar(), routes)]

    def _score(self) -> Target:
        return Target(
            "score",
            programs_of(self.training)["_score"],
            (self.params, self._micro_batch().rows, self._scalar()),
            resident=self.beside_policy,
        )

    def _without_teacher(self) -> dict[str, Any]:
        return {name: arrays for name, arrays in self.beside_policy.items() if name not in self.teacher}

    def _teach(self) -> Target:
        return Target(
            "teach",
            programs_of(self.training)["_teacher_score"],
            (*self.teacher.values(), self._micro_batch().rows, self._scalar()),
            resident=self._without_teacher() | {"policy": self.params},
        )

    def _accumulate(self) -> Target:
        params, beside = self.params, self.beside_policy
        if self.teacher and self.config.teacher.place == "loss":
            params, beside = Taught(params, *self.teacher.values()), self._without_teacher()
        return Target(
            "accumulate",
            programs_of(self.training)["_accumulate"],
            (params, self.gradients, self._micro_batch(), *[self._scalar()] * 3, *self._balance()),
            resident=beside,
        )

    def _apply(self) -> Target:
        return Target(
            "apply",
            programs_of(self.training)["_apply"],
            (self.trained, self.optimizer_state, self.gradients),
            resident=self._compared() | self.base,
        )
