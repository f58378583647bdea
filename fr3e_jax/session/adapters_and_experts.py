"""Adapters and experts of the configured network: the adapters' settings, and combinations that are refused."""

from __future__ import annotations

from pathlib import Path

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.lora_section import TARGETS, LoraConfig, target_names
from fr3e_jax.configuration.schema import Config
from fr3e_jax.policy.adapter_files import read_adapter_settings
from fr3e_jax.policy.architecture import Architecture, UnsupportedModel
from fr3e_jax.policy.lora import LoraSettings


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
    lora = lora_settings(config.model.lora)
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


def lora_settings(lora: LoraConfig) -> LoraSettings | None:
    """The adapters that ``model.lora`` describes; None: all weights are trained.

    With ``model.lora.path`` the file says rank, alpha and targets, and ``lora`` gets them.

    Raises:
      ConfigError: the settings are not those of the file.
      UnsupportedModel, FileNotFoundError: the file cannot be used.
    """
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
