"""The network that settings describe and its training programs: what a run builds, and `fr3e plan` compiles."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import optax
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.configuration.schema import Config, ModelConfig
from fr3e_jax.policy.architecture import PUBLISHED, Architecture, UnsupportedModel
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.network import ForwardOptions
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.optimizer_programs import make_optimizer
from fr3e_jax.programs.train_programs import LossSettings, TrainPrograms

IN_LOSS = "entropy_advantage"
"""The shaping step that needs its own token alone: last in the list, the loss applies it, and no pass is made."""

# A longer or shorter context is the same network: base and instruct models of a size differ in it.
_SAME_NETWORK_WITHOUT = {"max_position_embeddings"}


def model_directory(path: str) -> Path:
    """``model.path`` as a directory; raises FileNotFoundError unless it is one."""
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise FileNotFoundError(
            f"model.path={path} is no directory; expected a Hugging Face directory (config.json, safetensors, "
            "tokenizer), such as `fr3e sft` writes, or nothing for random weights"
        )
    return directory


def configured_architecture(config: Config, vocab_size: int) -> Architecture:
    """From ``model.path``; without one ``model.architecture``; without that the sizes in ``model``.

    ``vocab_size``: of the tokenizer. Raises `UnsupportedModel` where the embedding is smaller, or where the directory
    holds another network than ``model.architecture`` names.
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
    if vocab_size > architecture.vocab_size:
        raise UnsupportedModel(
            f"the tokenizer has {vocab_size} tokens, the model's embedding {architecture.vocab_size}; "
            "set model.tokenizer to the model's own tokenizer"
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
        rope_theta=model.rope_theta,
        tie_word_embeddings=model.tie_word_embeddings,
    )


def _check_same_network(found: Architecture, model: ModelConfig) -> None:
    named = PUBLISHED[model.architecture]
    different = [
        f"{field.name}={getattr(found, field.name)} where {model.architecture} has {getattr(named, field.name)}"
        for field in dataclasses.fields(Architecture)
        if field.name not in _SAME_NETWORK_WITHOUT and getattr(found, field.name) != getattr(named, field.name)
    ]
    if different:
        same = [name for name, known in PUBLISHED.items() if known == found]
        remedy = f"model.architecture={same[0] if same else 'custom'}"
        raise UnsupportedModel(
            f"{model.path}/config.json is not model.architecture={model.architecture}: it has "
            f"{', '.join(different)}; set {remedy}, or name another directory"
        )


def configured_train_programs(
    config: Config,
    graphdef: nnx.GraphDef,
    abstract_params: Any,
    shardings: Any,
    mesh: Mesh,
    *,
    supervised: bool = False,
) -> TrainPrograms:
    """The training programs of a run; ``supervised``: those of ``fr3e sft``."""
    return TrainPrograms(
        graphdef,
        abstract_params,
        shardings,
        mesh,
        _optimizer(config, config.optimizer.learning_rate),
        loss=None if supervised else loss_settings(config),
        token_chunk=config.training.token_chunk,
        options=_forward_options(config),
    )


def configured_critic_programs(config: Config, architecture: Architecture, mesh: Mesh) -> CriticPrograms:
    """The critic of a run: `critic` in its settings, all else as the policy's."""
    return CriticPrograms(
        architecture,
        mesh,
        _optimizer(config, config.critic.learning_rate),
        clip=config.critic.clip,
        param_dtype=config.model.param_dtype,
        compute_dtype=config.model.compute_dtype,
        options=_forward_options(config),
    )


def loss_settings(config: Config) -> LossSettings:
    """The policy loss of a run."""
    loss, kl, shaping = config.loss, config.kl, config.shaping
    bonus = shaping.entropy_advantage
    return LossSettings(
        epsilon_low=loss.epsilon_low,
        epsilon_high=loss.epsilon_high,
        dual_clip=loss.dual_clip,
        importance_cap=loss.importance_cap,
        entropy_coefficient=loss.entropy_coefficient,
        sequence_ratio=loss.ratio == "sequence",
        kl_coefficient=kl.coefficient if kl.place == "loss" else 0.0,
        kl_estimator=kl.estimator,
        entropy_advantage=(bonus.alpha, bonus.kappa) if shaping.steps[-1:] == [IN_LOSS] else None,
        covariance_penalty=shaping.kl_cov.coefficient if "kl_cov" in shaping.steps else None,
    )


def _forward_options(config: Config) -> ForwardOptions:
    training = config.training
    return ForwardOptions(training.remat, training.attention_block, training.scan_layers)


def _optimizer(config: Config, learning_rate: float) -> optax.GradientTransformation:
    o = config.optimizer
    return make_optimizer(
        learning_rate=learning_rate,
        schedule=o.schedule,
        warmup_updates=o.warmup_updates,
        decay_updates=o.decay_updates,
        beta1=o.beta1,
        beta2=o.beta2,
        epsilon=o.epsilon,
        weight_decay=o.weight_decay,
        max_grad_norm=o.max_grad_norm,
    )
