"""Memory and cost of a recipe's programs by arithmetic, without compiling.

Estimates compare settings, and name the largest arrays of a program. Bytes are those of one device, and
split arrays count as split evenly. The compiler may keep further arrays, so a program can need more. Arrays have the
largest shapes of the recipe. FLOPs and bytes read are those at a mean length of responses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from fr3e_jax.configuration.lora_section import LoraConfig
from fr3e_jax.configuration.sampler_rules import INT8
from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.teacher_section import TeacherConfig
from fr3e_jax.hub import model_directory
from fr3e_jax.learning.trained_trunks import trains_trunks
from fr3e_jax.planning.mesh_sizes import MeshSizes, rollout_sizes, training_sizes
from fr3e_jax.planning.targets import device_bytes
from fr3e_jax.planning.workload import (
    bases_per_prompt,
    decoder_sizes,
    filled_lanes,
    largest_micro_batch,
    promoted_positions,
)
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.int8 import channel_elements, with_scales
from fr3e_jax.policy.lora import LoraSettings, build_adapted_network
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.fused_steps import fuses_steps
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.shardings import abstract_arrays, param_shardings
from fr3e_jax.session.adapters_and_experts import lora_settings

SAMPLING = ("prefill", "decode", "promote", "explore")  # programs on the mesh of rollouts
_WIDTH = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Estimate:
    """The estimate of one program; names map to bytes on one device."""

    arrays: dict[str, float]  # that the program reads, writes or makes
    resident: dict[str, float]  # other arrays that stay on the device while the program runs
    flops: float  # of all devices
    read_bytes: float
    gathered_bytes: float  # sent by each device to gather weights, or keys and values, and to scatter gradients
    reduced_bytes: float  # sent by each device within a layer, over ``tensor``
    summed_bytes: float = 0.0  # sent by each device to add gradients over ``replica``
    positions: int = 0
    shape: str = ""

    @property
    def peak_bytes(self) -> float:
        return sum(self.arrays.values())

    @property
    def total_bytes(self) -> float:
        return self.peak_bytes + sum(self.resident.values())


@lru_cache(maxsize=64)
def _adapter_bytes(architecture: Architecture, lora: LoraSettings, sizes: MeshSizes) -> int:
    """Bytes of all adapters on a device; some lie whole on it."""
    adapters, axes = _adapters(architecture, lora)
    shardings = param_shardings(sizes.abstract_mesh, adapters, axes, architecture)
    return device_bytes(abstract_arrays(adapters, shardings))


@lru_cache(maxsize=8)
def _adapters(architecture: Architecture, lora: LoraSettings) -> tuple[Any, Any]:
    """Abstract adapters and their logical axes."""
    _, abstract, axes = build_adapted_network(architecture, lora)
    return abstract.adapters, axes.adapters


@lru_cache(maxsize=8)
def _teacher_architecture(path: str) -> Architecture:
    return read_architecture(model_directory(path, "teacher.path"))


@lru_cache(maxsize=64)
def _int8_elements(architecture: Architecture) -> tuple[int, int]:
    return channel_elements(build_network(architecture, completed=with_scales)[1])


class Estimator:
    """Estimates of a recipe's programs on ``devices`` devices."""

    def __init__(
        self,
        config: Config,
        architecture: Architecture,
        devices: int,
        response_tokens: int = 0,
        row: RowShape | None = None,
    ):
        """An estimator for the recipe ``config``, whose network has ``architecture``, on so many ``devices``.

        ``response_tokens``: the mean length of responses, which attention and decode steps read; 0: the cap. ``row``:
        of the largest micro-batch, where declaring it would take too long; None: as the recipe declares.
        """
        self.config, self.a, self.devices = config, architecture, devices
        self.train, self.roll = training_sizes(config.mesh, devices), rollout_sizes(config.mesh, devices)
        self.compute = _WIDTH[config.model.compute_dtype]
        self.stored = _WIDTH[config.model.param_dtype]
        self.int8 = config.rollout.param_dtype == INT8  # of kernels; the rest has the compute type
        self.read = self.compute if self.int8 else _WIDTH[config.rollout.param_dtype or config.model.param_dtype]
        axes = ("replica", "tensor", "expert")
        self.relaid = any(getattr(self.roll, axis) != getattr(self.train, axis) for axis in axes)
        self.lora = lora_settings(config.model.lora)
        self.merges = config.model.lora.rollouts == "merged"
        self.separate = config.mesh.sampler_devices > 0  # of the devices, some only sample
        other = self.int8 or self.read != self.stored or (self.lora is not None and self.merges)
        self.copies = self.relaid or other or self.separate
        self.slots = -(-config.rollout.trunk_slots // self.roll.batch_shards) * self.roll.batch_shards
        prompt, cap = config.data.max_prompt_tokens, config.rollout.max_response_tokens
        self.response_share = (response_tokens or cap) / cap
        self.sequence_share = (prompt + self.response_share * cap) / (prompt + cap)  # of prompt and response

        self._row = row

    @cached_property
    def teacher(self) -> Estimator:
        """The same for the teacher's passes over the rows; its ``rollout.param_dtype`` is that of the teacher."""
        config, stored = self.config, self.config.teacher.param_dtype or self.config.model.param_dtype
        narrow = config.model.compute_dtype if stored == INT8 else stored
        model = replace(config.model, param_dtype=narrow, lora=LoraConfig())
        rollout = replace(config.rollout, param_dtype=stored)
        config = replace(config, model=model, rollout=rollout, teacher=TeacherConfig())
        response = round(self.response_share * rollout.max_response_tokens)
        return Estimator(config, _teacher_architecture(self.config.teacher.path), self.devices, response, self._row)

    @cached_property
    def micro_batch(self) -> RowShape:
        """The largest micro-batch: as declared, or as many of the given rows as fit."""
        shards, tokens = self.train.batch_shards, self.config.training.micro_batch_tokens
        if self._row is None:
            return largest_micro_batch(self.config, shards, self.a.key_cost)
        row = self._row.row
        return row._replace(rows=shards * max(tokens // shards // row.positions, 1))

    # -- arrays of the run -------------------------------------------------------------------------------------------

    @property
    def kernels(self) -> int:
        """The number of elements in the matrices of all layers."""
        a = self.a
        embedded = a.vocab_size * a.hidden_size * (1 if a.tie_word_embeddings else 2)
        return a.num_parameters - embedded

    @property
    def active_kernels(self) -> int:
        """Those of them that a token passes."""
        return self.kernels - (self.a.num_parameters - self.a.active_parameters)

    def gathered_kernels(self, sizes: MeshSizes) -> float:
        """Elements of a layer's matrices that a device gathers, of experts only those of its place on ``expert``."""
        a = self.a
        experts = 3 * a.num_experts * a.hidden_size * a.expert_size * a.sparse_layers
        return (self.kernels - experts * (1 - 1 / sizes.expert)) / sizes.tensor / a.num_layers

    def weights(self, width: int, sizes: MeshSizes) -> float:
        """Bytes on a device of all parameters, stored in ``width`` bytes each."""
        return self.a.num_parameters * width / (sizes.gathered_over * sizes.tensor)

    def trained(self, sizes: MeshSizes) -> float:
        """Bytes on a device of what is trained, as of its gradient and of each moment: all parameters, or adapters."""
        if self.lora is None:
            return self.weights(self.stored, sizes)
        return _adapter_bytes(self.a, self.lora, sizes)

    @property
    def policy_weights(self) -> float:
        """Bytes on a device of the weights of training: all parameters, and adapters on them."""
        return self.weights(self.stored, self.train) + (0.0 if self.lora is None else self.trained(self.train))

    def rollout_weights(self) -> float:
        """Bytes on a device of the weights that rollouts read."""
        beside = 0.0 if self.lora is None or self.merges else self.trained(self.roll)
        if beside and self.int8:  # read in the compute type, and copied in it
            beside *= self.compute / _WIDTH["float32"]
        return self._network_read(self.read, self.roll) + beside

    def _network_read(self, width: int, sizes: MeshSizes) -> float:
        """Bytes on a device of the network that rollouts read, in ``width`` bytes each where it is not in int8."""
        kernels, scales = _int8_elements(self.a) if self.int8 else (0, 0)
        saved = kernels * (width - 1) - scales * _WIDTH["float32"]
        return self.weights(width, sizes) - saved / (sizes.gathered_over * sizes.tensor)

    def heads_per_device(self, sizes: MeshSizes) -> float:
        return self.a.num_heads / sizes.tensor

    def cache_bytes(self, positions: int, *, hidden: bool = True) -> float:
        """Bytes of ``positions`` cached positions on a device: keys and values of all layers, and hidden states."""
        a = self.a
        heads = a.num_kv_heads if a.num_kv_heads % self.roll.tensor else a.num_kv_heads / self.roll.tensor
        width = a.hidden_size / self.roll.tensor if hidden else 0
        return positions * self.compute * (2 * a.num_layers * heads * a.head_dim + width)

    def beside_policy(self) -> dict[str, float]:
        """Arrays of the run beside the policy: optimizer state, reference, teacher, critic with its optimizer."""
        weights, arrays = self.trained(self.train), {}
        arrays["optimizer state"] = 2 * weights
        if self.config.kl.coefficient:
            arrays["reference policy"] = weights
        if self.config.teacher.path:
            arrays["teacher"] = self.teacher._network_read(self.teacher.read, self.teacher.train)
        if self.config.advantage.base_estimator == "gae":
            head = 0 if self.a.tie_word_embeddings else self.a.vocab_size * self.a.hidden_size  # a critic has none
            share = 1 - head / self.a.num_parameters
            arrays["critic and its optimizer"] = 3 * share * self.weights(self.stored, self.train)
        return arrays

    def beside_rollouts(self) -> dict[str, float]:
        """Arrays of training that stay on the devices while rollouts are sampled."""
        if self.separate:
            return {}
        copied = {"weights of training": self.policy_weights} if self.copies else {}
        return self.beside_policy() | copied

    def promoted_bytes(self) -> float:
        """Bytes of the promoted trunks of a round."""
        shards = self.roll.batch_shards
        bases = self.config.rollout.prompts_per_round * bases_per_prompt(self.config)
        return bases * self.cache_bytes(promoted_positions(self.config, shards) // shards)

    # -- rollouts ----------------------------------------------------------------------------------------------------

    def caches(self, explore: bool) -> tuple[float, float]:
        """Bytes on a device of the trunks and of the rings, without hidden states: what decode steps read."""
        shape = decoder_sizes(self.config, self.slots, explore=explore)
        slots = shape.slots // self.roll.batch_shards
        trunks, rings = slots * shape.trunk_capacity, slots * shape.lanes * shape.capacity
        return self.cache_bytes(trunks, hidden=False), self.cache_bytes(rings, hidden=False)

    @property
    def fuses_steps(self) -> bool:
        """True if decode steps read only the filled blocks of caches (`fr3e_jax.programs.fused_steps`)."""
        return fuses_steps(self.config.model.attention, self.a.num_kv_heads, self.roll.tensor)

    def decode(self, explore: bool = False) -> Estimate:
        """A chunk of decode steps of base rollouts, or of explored rollouts."""
        config, a = self.config, self.a
        shape = decoder_sizes(config, self.slots, explore=explore)
        slots, steps = shape.slots // self.roll.batch_shards, config.rollout.decode_chunk
        lanes, heads = slots * shape.lanes, self.heads_per_device(self.roll)
        rings = self.cache_bytes(lanes * shape.capacity, hidden=shape.promotable)
        arrays = {"weights of rollouts": self.rollout_weights(), "rings": rings}
        arrays["trunks"] = self.cache_bytes(slots * shape.trunk_capacity)
        arrays |= {"rings of the steps": rings} if a.num_kv_heads % self.roll.tensor else {}  # XLA splits them by head
        if self.read != self.compute:
            arrays["head in the compute type"] = self.compute * a.vocab_size * a.hidden_size / self.roll.tensor
        if self.roll.fsdp > 1:
            arrays["gathered weights"] = self.gathered_kernels(self.roll) * self.compute
        scores = 2 * 4 * lanes * heads * (shape.trunk_capacity + shape.capacity)
        arrays["attention scores"] = 0 if self.fuses_steps else scores
        arrays["logits"] = 4 * lanes * a.vocab_size / self.roll.tensor
        busy, read_caches = filled_lanes(config, explore), sum(self.caches(explore))
        if self.fuses_steps:  # reads what is filled, of a ring half of a response on average; XLA's products read all
            read_caches = self._filled_caches(slots, busy, shape.trunk_capacity, shape.capacity, explore)
        weights = self._network_read(min(self.read, self.compute), self.roll)
        beside = self.beside_rollouts() | ({"promoted trunks": self.promoted_bytes()} if config.explore.enabled else {})
        beside |= {} if explore else {"prefilled prompts": arrays["trunks"]}
        tokens = shape.slots * shape.lanes
        attended = self._attention_flops((tokens, shape.trunk_capacity + shape.capacity))
        flops = 2 * tokens * (self.active_kernels + a.vocab_size * a.hidden_size) + attended
        text = f"{shape.slots} trunks of {shape.trunk_capacity}, {shape.lanes} lanes each of {shape.capacity}"
        return Estimate(
            arrays,
            beside,
            steps * flops,
            steps * (weights + read_caches),
            steps * self._gathered(self.roll, 1),
            steps * self._reduced(lanes, self.roll, 1),
            positions=shape.slots * busy * steps,
            shape=f"{text}, {steps} steps",
        )

    def _filled_caches(self, slots: int, lanes: int, trunk: int, ring: int, explore: bool) -> float:
        """Bytes that a fused step reads of ``slots`` trunks with ``lanes`` rings each: the filled part, in windows."""
        a, filled = self.a, trunk * (self.sequence_share if explore else 1)
        positions = 0.0
        for layer in range(a.num_layers):
            window = a.window_of(layer) or trunk + ring
            recent = min(ring * self.response_share / 2, window)
            positions += slots * (lanes * recent + min(filled, window - recent))
        return self.cache_bytes(positions / a.num_layers, hidden=False)

    def prefill(self) -> Estimate:
        """The prefill of one prompt for each slot."""
        config, a = self.config, self.a
        shape = decoder_sizes(config, self.slots)
        rows, length = self.slots // self.roll.batch_shards, shape.trunk_capacity
        rings = self.cache_bytes(rows * shape.lanes * shape.capacity, hidden=shape.promotable)
        rings += self.cache_bytes(rows * length)
        trunks, scores = self.cache_bytes(rows * length), 4 * rows * self.heads_per_device(self.roll) * length * length
        head = 0.0 if a.tie_word_embeddings else self.read * a.vocab_size * a.hidden_size / self.roll.tensor
        head /= self.roll.gathered_over
        weights, activations = self.rollout_weights() - head, self._layer_bytes(rows * length, self.roll)
        arrays = {"weights of rollouts": weights, "trunks": trunks}
        arrays["scores or activations of a layer"] = max(2 * scores, activations)
        tokens = self.slots * length
        flops = 2 * tokens * self.active_kernels + self._attention_flops((tokens, length))
        return Estimate(
            arrays,
            self.beside_rollouts() | {"decoder": rings, "head of rollouts": head},
            flops,
            sum(arrays.values()),
            self._gathered(self.roll, 1),
            self._reduced(rows * length, self.roll, 1),
            positions=tokens,
            shape=f"{self.slots} prompts of {length}",
        )

    # -- training ----------------------------------------------------------------------------------------------------

    def accumulate(self, *, backward: bool = True) -> Estimate:
        """The forward pass of the largest micro-batch and, if ``backward``, its backward pass."""
        config, a, sizes = self.config, self.a, self.train
        rows, trunk, lanes, length, window = self.micro_batch
        positions, seen = trunk + lanes * length, length * min(window, lanes)
        in_rows = rows // sizes.batch_shards * positions  # of a batch shard
        tokens = -(-in_rows // sizes.context)
        arrays = {"weights": self.weights(self.stored, sizes)}
        if self.lora is not None:
            arrays["adapters"] = self.trained(sizes)
        attended = trunk * trunk + lanes * length * (seen + trunk)  # of a row
        scores = self._score_bytes(rows // sizes.batch_shards, attended, max(trunk, seen))
        arrays |= self._in_all_layers(tokens, scores, backward)
        if backward:
            arrays |= dict.fromkeys(("gradients", "gradients of the micro-batch"), self.trained(sizes))
        # The head and the layers run one after the other, so the larger of the two makes the peak.
        keys = self._key_bytes(in_rows)
        in_layer = self._in_a_layer(tokens, scores, backward)
        in_layer["keys and values of whole rows"] = keys * (2 if backward else 1)
        arrays |= max(in_layer, self._in_the_head(backward), key=lambda turn: sum(turn.values()))
        products_of_scores = self._attention_flops((trunk, trunk), (lanes * length, seen + trunk))
        layers = 2 * positions * self.active_kernels + products_of_scores * self.sequence_share
        again = config.training.remat == "block"
        products = 3 if self.lora is None else 2  # no gradient of a frozen kernel
        flops = rows * (layers * (products + again if backward else 1))
        scored = lanes * length + trunk * trains_trunks(config.explore)
        flops += 2 * rows * scored * a.vocab_size * a.hidden_size * (products if backward else 1)
        passes = 2 + again if backward else 1
        return Estimate(
            arrays,
            self.beside_policy(),
            flops,
            sum(arrays.values()),
            self._gathered(sizes, passes + (backward and self.lora is None))  # and gradients are scattered
            + self._crossing(tokens, keys, passes, backward)
            + self._to_experts(tokens, passes),
            # States are gathered by position before each product that sums them, which computing again spares half of.
            self._reduced(tokens, sizes, 1.5 + (1.5 + again) * backward),
            positions=rows * positions,
            shape=f"{rows} row{'s' * (rows > 1)}: a trunk of {trunk} and {lanes} lane{'s' * (lanes > 1)} of {length}",
        )

    def teach(self) -> Estimate:
        """The teacher's scores of the largest micro-batch."""
        beside = self.beside_policy()
        theirs = self.teacher.accumulate(backward=False)
        arrays = theirs.arrays | {"weights": beside.pop("teacher")}
        return replace(theirs, arrays=arrays, resident=beside | {"policy": self.policy_weights})

    def gradient(self) -> Estimate:
        """`accumulate`, with the teacher's forward pass before it where the loss has its term."""
        policy = self.accumulate()
        if not self.config.teacher.path or self.config.teacher.place != "loss":
            return policy
        theirs, beside = self.teacher.accumulate(backward=False), dict(policy.resident)
        logits = 4 * self.config.training.token_chunk * self.teacher.a.vocab_size / self.train.tensor
        arrays = policy.arrays | {"teacher": beside.pop("teacher"), "logits of the teacher": logits}
        sums = ("flops", "read_bytes", "gathered_bytes", "reduced_bytes")
        both = {name: getattr(policy, name) + getattr(theirs, name) for name in sums}
        return replace(policy, arrays=arrays, resident=beside, **both)

    def _states_bytes(self, tokens: int) -> float:
        """Bytes of the hidden states between layers, which are split by position over ``tensor``."""
        return tokens * self.compute * self.a.hidden_size / self.train.tensor

    def _layer_bytes(self, tokens: int, sizes: MeshSizes) -> float:
        """Bytes of the activations within a layer for a device's ``tokens``: gathered states and split arrays."""
        a = self.a
        inner = (a.num_heads + 2 * a.num_kv_heads) * a.head_dim
        copies = sizes.expert * a.experts_per_token  # of each token, one for an expert
        experts = copies * (2 * a.hidden_size + 3 * a.expert_size)  # ``tensor`` splits experts, not their columns
        split = 2 * a.hidden_size + 2 * inner + (0 if a.sparse_layers else 3 * a.intermediate_size)
        return tokens * self.compute * (2 * a.hidden_size + experts + split / sizes.tensor)

    def _score_bytes(self, rows: int, attended: int, keys: int) -> float:
        """Bytes of a layer's scores of a device's ``rows`` that exist at once; fused kernels keep them out of memory.

        ``attended``: pairs of a query and a key in a row. ``keys``: of a query at most.
        """
        if self.config.model.attention == "pallas":
            return 0.0
        block = self.config.training.attention_block
        pairs = min(block * keys or attended, attended / self.train.context)
        return 4 * self.heads_per_device(self.train) * rows * pairs

    def _key_bytes(self, positions: int) -> float:
        """Bytes of a layer's keys and values of whole rows, which ``context`` gathers."""
        a, sizes = self.a, self.train
        heads = a.num_kv_heads if a.num_kv_heads % sizes.tensor else a.num_kv_heads / sizes.tensor
        return 2 * positions * heads * a.head_dim * self.compute if sizes.context > 1 else 0.0

    def _crossing(self, tokens: int, keys: float, passes: int, backward: bool) -> float:
        """Bytes sent over ``context``: each layer's keys and values, and the states that predict tokens, in float32.

        In the backward pass gradients of keys and values are scattered.
        """
        context, a = self.train.context, self.a
        states = tokens * a.hidden_size * (self.compute + 4 * backward)
        return (context - 1) / context * passes * a.num_layers * keys + (context - 1) * states

    def _in_all_layers(self, tokens: int, scores: float, backward: bool) -> dict[str, float]:
        """Arrays that live as long as the program. Scores in blocks are computed again; others are kept twice."""
        training, layer = self.config.training, self._layer_bytes(tokens, self.train)
        arrays = {"stacked weights": self.weights(self.compute, self.train)} if training.scan_layers else {}
        if backward:
            inputs = self._states_bytes(tokens)
            everything = layer + (0 if training.attention_block else 2 * scores)
            saved = {"none": everything, "dots": 0.7 * layer, "block": inputs}[training.remat]
            arrays["activations kept for the backward pass"] = self.a.num_layers * saved
        return arrays

    def _in_a_layer(self, tokens: int, scores: float, backward: bool) -> dict[str, float]:
        gathered = 2 * self.gathered_kernels(self.train) * self.compute
        return {
            "activations of a layer": self._layer_bytes(tokens, self.train) * (1.5 if backward else 1),
            "attention scores": scores * (3 if backward else 2),
            "gathered weights of a layer": gathered if self.train.gathered_over > 1 else 0.0,
        }

    def _in_the_head(self, backward: bool) -> dict[str, float]:
        a, shards = self.a, self.train.tensor
        logits = 4 * self.config.training.token_chunk * a.vocab_size / shards
        arrays = {"logits": logits * (1.5 if backward else 1)}  # and their gradient in the compute type
        head = a.vocab_size * a.hidden_size / shards
        is_copied = self.train.gathered_over > 1 or self.stored > self.compute
        arrays["gathered or converted head"] = self.compute * head if is_copied else 0.0
        return arrays | ({"gradient of the head": 4 * head} if backward and self.lora is None else {})

    def apply(self) -> Estimate:
        """An optimizer step: gradients of all replicas are added, weights and both moments updated in place."""
        weights, replica = self.trained(self.train), self.train.replica
        arrays = {"weights": weights, "gradients": weights, "optimizer state": 2 * weights}
        arrays |= {"gradients of all replicas": weights} if replica > 1 else {}
        beside = {name: size for name, size in self.beside_policy().items() if name != "optimizer state"}
        if self.lora is not None:
            beside["base of the adapters"] = self.weights(self.stored, self.train)
        summed = 2 * weights * (replica - 1) / replica
        return Estimate(arrays, beside, 0.0, 7 * weights, 0.0, 0.0, summed_bytes=summed)

    def reshard(self) -> Estimate:
        stored, copy = self.policy_weights, self.rollout_weights()
        arrays = {"weights of training": stored, "weights of rollouts": copy}
        arrays["arrays between the two layouts"] = copy if self.relaid else 0.0  # compiled: 0.7 to 0.9 of a copy
        train, roll = self.train, self.roll
        stays = min(1.0, roll.tensor / train.tensor) * min(1.0, roll.gathered_over / train.gathered_over)
        sent = copy * (1 - stays * (not self.separate))
        return Estimate(arrays, self.beside_policy(), 0.0, sum(arrays.values()), sent, 0.0)

    def promote(self) -> Estimate:
        """The promotion of an expanded base: its lane is read on its shard, and summed to all of them."""
        base, shards = decoder_sizes(self.config, self.slots), self.roll.batch_shards
        capacity = promoted_positions(self.config, shards)
        decoder = self.slots // shards * (base.trunk_capacity + base.lanes * base.capacity)
        gathered = self.cache_bytes(capacity)
        arrays = {"decoder": self.cache_bytes(decoder), "trunks": self.cache_bytes(capacity // shards)}
        arrays["whole rows on every shard"] = 2 * gathered if shards > 1 else 0.0
        beside = self.beside_rollouts() | {"weights of rollouts": self.rollout_weights()}
        sent, text = 2 * (shards - 1) / shards * gathered, f"a trunk of {capacity}"
        return Estimate(arrays, beside, 0.0, sum(arrays.values()), 0.0, sent, shape=text)

    def devices_of(self, name: str) -> int:
        """The number of devices on which the program of this name runs."""
        if not self.separate:
            return self.devices
        sampler = self.config.mesh.sampler_devices
        return sampler if name in SAMPLING else self.devices - sampler

    def of(self, name: str) -> Estimate:
        """The estimate of the program of this name in `fr3e_jax.planning.targets.PROGRAMS`."""
        special = {"score": lambda: self.accumulate(backward=False), "explore": lambda: self.decode(explore=True)}
        special["accumulate"] = self.gradient
        return special.get(name, lambda: getattr(self, name)())()

    # -- network -----------------------------------------------------------------------------------------------------

    def _attention_flops(self, *pairs: tuple[float, float]) -> float:
        """FLOPs of attention in all layers: pairs of queries and their keys, cut by windows."""
        a = self.a
        fused = self.config.model.attention == "pallas"  # XLA's products compute what windows hide
        windows = [a.window_of(layer) * fused for layer in range(a.num_layers)]
        seen = sum(queries * min(keys, window or keys) for queries, keys in pairs for window in windows)
        return 4 * a.num_heads * a.head_dim * seen

    def _gathered(self, sizes: MeshSizes, passes: int) -> float:
        """Bytes sent by each device to gather the weights in each pass over them."""
        share = (sizes.gathered_over - 1) / sizes.gathered_over
        elsewhere = self.kernels / sizes.tensor - self.gathered_kernels(sizes) * self.a.num_layers
        return passes * share * (self.a.num_parameters / sizes.tensor - elsewhere) * self.compute

    def _to_experts(self, tokens: int, passes: int) -> float:
        """Bytes sent by each device to gather a group's tokens, and to scatter what the experts add to them."""
        a, others = self.a, self.train.expert - 1
        return passes * 2 * others * a.sparse_layers * tokens * a.hidden_size * self.compute

    def _reduced(self, tokens: int, sizes: MeshSizes, passes: float) -> float:
        """Bytes sent by each device to sum hidden states over ``tensor``, twice a layer in each pass."""
        share = 2 * (sizes.tensor - 1) / sizes.tensor
        return passes * share * 2 * self.a.num_layers * tokens * self.a.hidden_size * self.compute
