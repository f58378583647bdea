"""The configured network, the layout of its weights, and the weights that a run starts from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.sampler_rules import INT8
from fr3e_jax.configuration.schema import Config, ModelConfig
from fr3e_jax.hub import model_directory
from fr3e_jax.learning.configured_programs import configured_critic_programs, configured_train_programs
from fr3e_jax.policy.adapter_files import load_adapters
from fr3e_jax.policy.architecture import PUBLISHED, Architecture, UnsupportedModel
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.int8 import with_scales
from fr3e_jax.policy.lora import LoraSettings, build_adapted_network, initial_adapters, joined
from fr3e_jax.policy.network import Params, build_network, initial_params
from fr3e_jax.programs.checksums import checksums
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.frozen_base import FrozenBase, merged_as_stored
from fr3e_jax.programs.frozen_teacher import FrozenTeacher
from fr3e_jax.programs.fused_rows import chosen_attention, kernel_platform
from fr3e_jax.programs.host_arrays import params_on_mesh
from fr3e_jax.programs.host_memory import fit_host_memory
from fr3e_jax.programs.mesh import make_mesh, rollout_mesh, sampler_mesh, separate_devices
from fr3e_jax.programs.reshard import RolloutWeights, read_type
from fr3e_jax.programs.shardings import abstract_arrays, param_shardings
from fr3e_jax.programs.train_programs import TrainPrograms
from fr3e_jax.runs.checkpoint_content import flatten_arrays
from fr3e_jax.session.adapters_and_experts import check_experts, lora_settings

_OF_ADAPTERS = 7_919  # folded into the key of the seed; the base draws from the key itself

# The context length does not make another network: base and instruct models of one size differ in it.
_SAME_NETWORK_WITHOUT = {"max_position_embeddings"}


def configured_architecture(config: Config, vocab_size: int) -> Architecture:
    """The architecture of ``model.path``, else of ``model.architecture``, else of the sizes in ``model``.

    Args:
      config: the settings.
      vocab_size: number of tokens of the tokenizer, which sizes in ``model`` leave open.

    Raises:
      FileNotFoundError: ``model.path`` is no directory.
      UnsupportedModel: the longest sequence needs more positions than the network has, or the directory holds another
        network than ``model.architecture`` names.
    """
    model = config.model
    named = model.architecture != "custom"
    if not model.path and not named:
        return _sized_architecture(model, vocab_size)
    if model.path:
        architecture = read_architecture(model_directory(model.path))
        if named:
            _check_same_network(architecture, model)
    else:
        architecture = PUBLISHED[model.architecture]
    if model.max_position_embeddings:
        architecture = dataclasses.replace(architecture, max_position_embeddings=model.max_position_embeddings)
    needed = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    if needed > architecture.max_position_embeddings:
        name, positions = model.path or model.architecture, architecture.max_position_embeddings
        raise UnsupportedModel(
            f"{name} has {positions} positions (max_position_embeddings), and the longest sequence needs {needed} "
            f"(data.max_prompt_tokens={config.data.max_prompt_tokens} and rollout.max_response_tokens="
            f"{config.rollout.max_response_tokens}); lower these, or go beyond what the network was trained for with "
            f"model.max_position_embeddings={needed}"
        )
    return architecture


def _sized_architecture(model: ModelConfig, vocab_size: int) -> Architecture:
    return Architecture(
        vocab_size=vocab_size,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.hidden_size // model.num_heads,
        intermediate_size=model.intermediate_size,
        rope_theta=10_000.0,
    )


def _check_same_network(read: Architecture, model: ModelConfig) -> None:
    named = PUBLISHED[model.architecture]
    different = [
        f"{field.name}={getattr(read, field.name)} where {model.architecture} has {getattr(named, field.name)}"
        for field in dataclasses.fields(Architecture)
        if field.name not in _SAME_NETWORK_WITHOUT and getattr(read, field.name) != getattr(named, field.name)
    ]
    if different:
        same = [name for name, published in PUBLISHED.items() if published == read]
        remedy = f"model.architecture={same[0] if same else 'custom'}"
        raise UnsupportedModel(
            f"{model.path}/config.json is not model.architecture={model.architecture}: it has "
            f"{', '.join(different)}; set {remedy}, or name another directory"
        )


def starting_weights(
    model: ModelConfig, seed: int, architecture: Architecture, abstract: Params, shardings: Params
) -> Params:
    """All weights that a run starts from: those of ``model.path``, or random ones of ``seed``."""
    if model.path:
        with as_config_error():
            params = load_params(model_directory(model.path), architecture, abstract, shardings)
    else:
        params = initial_params(architecture, jax.random.key(seed), param_dtype=model.param_dtype)
    return params_on_mesh(params, shardings)


def starting_adapters(
    path: str, seed: int, architecture: Architecture, lora: LoraSettings, abstract: Params, shardings: Params
) -> Params:
    """The adapters that a run starts from: those of ``path``, or new ones, which add 0."""
    if path:
        with as_config_error():
            return load_adapters(path, architecture, lora, abstract, shardings)
    key = jax.random.fold_in(jax.random.key(seed), _OF_ADAPTERS)
    return params_on_mesh(initial_adapters(architecture, lora, abstract, key), shardings)


def _fingerprint(params: Params) -> str:
    hashes = checksums(flatten_arrays(params))
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Model:
    """The network of a run on its mesh, without settings: those are the session's.

    What is trained and saved are all weights, or with adapters these alone; the base below them is loaded again.
    """

    architecture: Architecture
    mesh: Mesh
    graphdef: nnx.GraphDef  # of training and scoring
    abstract_params: Params  # shapes and types of what is trained
    param_shardings: Params  # of what is trained
    decoding_graphdef: nnx.GraphDef
    weights: RolloutWeights
    lora: LoraSettings | None = None  # None: all weights are trained
    base: FrozenBase | None = None  # with ``lora``
    teacher: FrozenTeacher | None = None  # where rollouts may train

    def fresh_params(self, config: Config) -> Params:
        """The weights or adapters that a run starts from: `starting_weights` or `starting_adapters`."""
        layout = (self.abstract_params, self.param_shardings)
        if self.lora is None:
            return starting_weights(config.model, config.seed, self.architecture, *layout)
        return starting_adapters(config.model.lora.path, config.seed, self.architecture, self.lora, *layout)

    def whole(self, params: Params, dtype: str = "") -> Params:
        """All weights of the network, with the adapters in ``params`` merged into their base.

        ``dtype``: see `merged_as_stored`.
        """
        return params if self.base is None else merged_as_stored(self.base, dtype)(self.base.below(params))

    def base_fingerprint(self) -> str:
        """A hash of the weights below the adapters; "" without adapters."""
        return "" if self.base is None else _fingerprint(self.base.params())

    def teacher_fingerprint(self) -> str:
        """A hash of the teacher's weights; "" without one."""
        return "" if self.teacher is None else _fingerprint(self.teacher.params())

    def sharded_abstract_params(self) -> Params:
        """Shapes, types and shardings of the weights, to restore a checkpoint into."""
        return abstract_arrays(self.abstract_params, self.param_shardings)

    def train_programs(self, config: Config, *, supervised: bool = False) -> TrainPrograms:
        """The training programs of the run; ``supervised``: those of ``fr3e sft``."""
        network = (self.architecture, self.graphdef, self.abstract_params, self.param_shardings)
        beside = {"base": self.base, "teacher": self.teacher}
        return configured_train_programs(config, *network, self.mesh, supervised=supervised, **beside)

    def critic_programs(self, config: Config) -> CriticPrograms | None:
        """The programs of PPO's value network; None if the method has no critic."""
        if config.advantage.base_estimator != "gae":
            return None
        return configured_critic_programs(config, self.architecture, self.mesh)


def model_on(
    mesh: Mesh,
    config: Config,
    architecture: Architecture,
    decoding: Mesh | None = None,
    sampler: Mesh | None = None,
) -> Model:
    """The network on ``mesh``; ``decoding``: the mesh of rollouts, if it is another one.

    ``sampler``: the mesh of devices that only sample, to which weights move from ``decoding``.

    Raises:
      MeshMismatch: a mesh does not fit the network.
      ConfigError, UnsupportedModel, FileNotFoundError: see `lora_settings`, `check_experts`, `build_adapted_network`.
    """

    def on(where: Mesh, abstract: Any, axes: Any) -> Any:
        prefix = "mesh." if where is mesh else "mesh.rollout_"
        return param_shardings(where, abstract, axes, architecture, prefix=prefix)

    check_experts(config, architecture)
    types = {"param_dtype": config.model.param_dtype, "compute_dtype": config.model.compute_dtype}
    graphdef, abstract, axes = network = build_network(architecture, **types)
    shardings, lora = on(mesh, abstract, axes), lora_settings(config.model.lora)
    merges = lora is not None and config.model.lora.rollouts == "merged"
    adapted = None if lora is None else build_adapted_network(architecture, lora, **types)
    read = network if adapted is None or merges else adapted
    dtype = read_type(config.rollout.param_dtype, *types.values(), kernel_platform(mesh))
    if dtype == INT8:
        dtype, scaled = config.model.compute_dtype, types | {"completed": with_scales}
        beside = lora is not None and not merges
        read = build_adapted_network(architecture, lora, **scaled) if beside else build_network(architecture, **scaled)
    decoding_graphdef, like, names = read[0], *map(joined, read[1:])
    layouts = (like, on(mesh, like, names), on(decoding or mesh, like, names), dtype)
    elsewhere = sampler and on(sampler, like, names)
    if adapted is None:
        weights = RolloutWeights(*layouts, elsewhere=elsewhere)
        return Model(architecture, mesh, graphdef, abstract, shardings, decoding_graphdef, weights)
    adapted_graphdef, both, names = adapted
    load_base = partial(starting_weights, config.model, config.seed, architecture, abstract, shardings)
    base = FrozenBase(abstract, shardings, lora.scale, load_base)
    weights = RolloutWeights(*layouts, base=base, merges=merges, elsewhere=elsewhere)
    adapters = both.adapters, on(mesh, both.adapters, names.adapters)
    return Model(architecture, mesh, adapted_graphdef, *adapters, decoding_graphdef, weights, lora, base)


def decoder_programs(settings: ModelConfig, model: Model, mesh: Mesh, *, keeps_routes: bool) -> DecoderPrograms:
    """The decoder's programs on the ``mesh`` of rollouts.

    ``keeps_routes``: rollouts may train, so the programs record the experts of each token, if the network has any.
    """
    return DecoderPrograms(
        model.decoding_graphdef,
        model.architecture,
        mesh,
        records_routes=keeps_routes,
        attention=chosen_attention(settings.attention, kernel_platform(mesh), model.architecture.head_dim),
    )


_COPY_SHARE = 0.25  # of a device's memory, for a copy of the weights: caches and the state of training need the rest
_COPY_SHARDS = (1, 2, 4, 8)


def rollout_tensor(config: Config, a: Architecture, read: str, split: int, devices: int, memory_bytes: float) -> int:
    """The tensor shards of a copy of the weights for rollouts, ``mesh.rollout_tensor``; 0: there is no copy.

    By default a copy has the fewest shards that fit, because without one each decode step gathers the weights. On
    devices that only sample it may take twice as much memory.

    Args:
      config, a: the recipe and its network.
      read: the type that rollouts read (`fr3e_jax.programs.reshard.read_type`).
      split: the shards from which training gathers each weight; with one there is nothing to gather.
      devices: of the mesh of rollouts.
      memory_bytes: of a device; 0: not known, as on CPU.
    """
    if config.mesh.rollout_tensor >= 0:
        return config.mesh.rollout_tensor
    width = 1 if read == INT8 else jax.numpy.dtype(read or config.model.param_dtype).itemsize
    copy = a.num_parameters * width
    divided = (devices, a.num_heads, a.intermediate_size, a.vocab_size, a.num_experts)
    separate = config.mesh.sampler_devices > 0
    most = _COPY_SHARE * (1 + separate) * memory_bytes
    fit = (n for n in _COPY_SHARDS if copy / n <= most and not any(size % n for size in divided))
    return next(fit, 0) if split > 1 or separate else 0


def open_model(
    config: Config, vocab_size: int, *, keeps_routes: bool = False, devices: Sequence | None = None
) -> tuple[Model, DecoderPrograms]:
    """The model that ``config`` names, and the programs that decode with it.

    ``vocab_size``: number of tokens of the tokenizer; ``keeps_routes``: see `decoder_programs`, and without it all
    devices sample, as nothing trains meanwhile; ``devices``: of the mesh, None: all that jax has.

    Raises:
      ValueError, OSError: see `configured_architecture`; or the mesh does not fit the devices or the network; or the
        devices do not run the attention that is asked for.
    """
    architecture = configured_architecture(config, vocab_size)
    fit_host_memory(architecture.num_parameters)
    if not keeps_routes:
        config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, sampler_devices=0))
    m = config.mesh
    training, sampling = separate_devices(jax.devices() if devices is None else list(devices), m.sampler_devices)
    mesh = make_mesh(m.replica, m.fsdp, m.tensor, training, context=m.context, expert=m.expert)
    chosen_attention(config.model.attention, kernel_platform(mesh), architecture.head_dim)
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    split = mesh.size // (mesh.shape["replica"] * mesh.shape["tensor"])
    types = config.model.param_dtype, config.model.compute_dtype
    read = read_type(config.rollout.param_dtype, *types, kernel_platform(mesh))
    tensor = rollout_tensor(config, architecture, read, split, len(sampling) or mesh.size, memory)
    sizes = {"fsdp": m.rollout_fsdp, "tensor": tensor}
    if sampling:
        decoding, leaving = sampler_mesh(mesh, sampling, **sizes)
        model = model_on(mesh, config, architecture, leaving, decoding)
    else:
        decoding = rollout_mesh(mesh, **sizes)
        model = model_on(mesh, config, architecture, decoding)
    return model, decoder_programs(config.model, model, decoding, keeps_routes=keeps_routes)
