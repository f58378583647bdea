"""The configured network on its meshes: what is trained, what rollouts read, and with adapters the base below them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.lora_section import TARGETS, target_names
from fr3e_jax.configuration.sampler_rules import INT8
from fr3e_jax.configuration.schema import Config
from fr3e_jax.policy.adapter_files import read_adapter_settings
from fr3e_jax.policy.architecture import Architecture, UnsupportedModel
from fr3e_jax.policy.int8 import with_scales
from fr3e_jax.policy.lora import LoraSettings, build_adapted_network, joined
from fr3e_jax.policy.network import Params, build_network
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.frozen_base import FrozenBase
from fr3e_jax.programs.fused_rows import chosen_attention
from fr3e_jax.programs.mesh import param_shardings
from fr3e_jax.programs.reshard import RolloutWeights


def check_experts(config: Config, architecture: Architecture) -> None:
    """Refuse what a network with experts does not do.

    Raises:
      UnsupportedModel: with the setting, and what to set in its place.
    """
    balance = config.model.experts.balance_coefficient
    if not architecture.num_experts:
        if config.mesh.expert > 1:
            raise UnsupportedModel(f"mesh.expert={config.mesh.expert}: the network has no experts; set mesh.expert=1")
        if balance:
            raise UnsupportedModel(
                f"model.experts.balance_coefficient={balance:g}: the network has no experts; "
                "set model.experts.balance_coefficient=0"
            )
        return
    if config.training.scan_layers and 0 < architecture.sparse_layers < architecture.num_layers:
        some = f"{architecture.sparse_layers} of {architecture.num_layers} layers have experts"
        raise UnsupportedModel(
            f"training.scan_layers=true: {some}, and a scan needs equal ones; set training.scan_layers=false"
        )
    if config.advantage.base_estimator == "gae":
        raise UnsupportedModel(
            "advantage.base_estimator=gae: a critic with experts is not supported; set another estimator, as grpo"
        )
    lora = lora_settings(config)
    if lora is not None and balance:
        raise UnsupportedModel(
            f"model.experts.balance_coefficient={balance:g}: with adapters routers do not train; "
            "set model.experts.balance_coefficient=0"
        )
    if lora is not None and (of_mlp := [name for name in lora.targets if name in TARGETS[4:]]):
        raise UnsupportedModel(
            f"model.lora.targets has {of_mlp[0]}: experts have no adapters; set model.lora.targets="
            f"[{','.join(name for name in lora.targets if name not in of_mlp) or ','.join(TARGETS[:4])}]"
        )


def decoder_programs(
    config: Config, network: PlacedNetwork, architecture: Architecture, mesh: Mesh, *, keeps_routes: bool
) -> DecoderPrograms:
    """The decoder's programs on the mesh of rollouts.

    ``keeps_routes``: rollouts may train. With router replay the programs then record the experts of each token.
    """
    return DecoderPrograms(
        network.decoding_graphdef,
        architecture,
        mesh,
        records_routes=keeps_routes and config.model.experts.router_replay,
        attention=chosen_attention(config.model.attention, mesh.devices.flat[0].platform, architecture.head_dim),
    )


@dataclass(frozen=True)
class PlacedNetwork:
    """``abstract`` and ``shardings`` are those of what is trained: all parameters, or the adapters."""

    graphdef: nnx.GraphDef  # of training and scoring
    abstract: Params
    shardings: Params
    decoding_graphdef: nnx.GraphDef
    weights: RolloutWeights
    lora: LoraSettings | None = None
    base: FrozenBase | None = None  # with ``lora``


def lora_settings(config: Config) -> LoraSettings | None:
    """The adapters that ``model.lora`` describes; None: all weights are trained.

    With ``model.lora.path`` the file says rank, alpha and targets, and ``config`` gets them.

    Raises:
      ConfigError: the settings are not those of the file.
      UnsupportedModel, FileNotFoundError: the file cannot be used.
    """
    lora = config.model.lora
    if lora.path and not (lora.rank and not Path(lora.path).expanduser().exists()):  # a resumed run needs it no more
        stored = read_adapter_settings(lora.path)
        targets = [name for name in target_names(["all-linear"]) if name in stored.targets]
        if unknown := sorted(set(stored.targets) - set(targets)):
            raise ConfigError(
                f"the adapter in model.lora.path={lora.path} has the target {unknown[0]}; expected some of "
                f"{', '.join(target_names(['all-linear']))}"
            )
        named = (lora.rank, lora.alpha, target_names(lora.targets))
        if lora.rank and named != (stored.rank, stored.alpha, (*targets,)):
            raise ConfigError(
                f"model.lora.rank={lora.rank}, alpha={lora.alpha:g}, targets={','.join(lora.targets)} are not those of "
                f"the adapter in model.lora.path={lora.path}: rank={stored.rank}, alpha={stored.alpha:g}, "
                f"targets={','.join(targets)}; leave them out, and the file's are taken"
            )
        lora.rank, lora.alpha, lora.targets = stored.rank, stored.alpha, targets
    if not lora.rank:
        return None
    return LoraSettings(lora.rank, lora.alpha, target_names(lora.targets))


def place_network(
    config: Config, architecture: Architecture, mesh: Mesh, decoding: Mesh, load: Callable[[Params, Params], Params]
) -> PlacedNetwork:
    """The network on the meshes of training and of rollouts.

    ``load(abstract, shardings)``: makes the weights that a run starts from.

    Raises:
      ConfigError, UnsupportedModel, FileNotFoundError: see `lora_settings` and `build_adapted_network`.
      MeshMismatch: a mesh does not fit the network.
    """

    def on(where: Mesh, abstract: Any, axes: Any) -> Any:
        prefix = "mesh." if where is mesh else "mesh.rollout_"
        return param_shardings(where, abstract, axes, architecture, prefix=prefix)

    check_experts(config, architecture)
    types = {"param_dtype": config.model.param_dtype, "compute_dtype": config.model.compute_dtype}
    graphdef, abstract, axes = network = build_network(architecture, **types)
    shardings, lora = on(mesh, abstract, axes), lora_settings(config)
    merges = lora is not None and config.model.lora.rollouts == "merged"
    adapted = None if lora is None else build_adapted_network(architecture, lora, **types)
    read, dtype = network if adapted is None or merges else adapted, config.rollout.param_dtype
    if dtype == INT8:
        dtype, scaled = config.model.compute_dtype, types | {"completed": with_scales}
        beside = lora is not None and not merges
        read = build_adapted_network(architecture, lora, **scaled) if beside else build_network(architecture, **scaled)
    decoding_graphdef, like, names = read[0], *map(joined, read[1:])
    layouts = (like, on(mesh, like, names), on(decoding, like, names), dtype)
    if adapted is None:
        return PlacedNetwork(graphdef, abstract, shardings, decoding_graphdef, RolloutWeights(*layouts))
    (adapted_graphdef, both, names), load_base = adapted, partial(load, abstract, shardings)
    base = FrozenBase(abstract, shardings, lora.scale, load_base)
    weights = RolloutWeights(*layouts, base=base, merges=merges)
    shardings = on(mesh, both.adapters, names.adapters)
    return PlacedNetwork(adapted_graphdef, both.adapters, shardings, decoding_graphdef, weights, lora, base)
