"""The training programs that settings describe: a run builds them, and `fr3e plan` compiles them."""

from __future__ import annotations

from typing import Any

import optax
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.configuration.schema import Config, OptimizerConfig
from fr3e_jax.objectives.user_objectives import user_loss
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.network import ForwardOptions
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.frozen_base import FrozenBase
from fr3e_jax.programs.frozen_teacher import FrozenTeacher
from fr3e_jax.programs.fused_rows import chosen_attention, kernel_platform
from fr3e_jax.programs.optimizer_programs import make_optimizer
from fr3e_jax.programs.train_programs import LossSettings, TrainPrograms

_LOGITS_ON_CPU = 2**26  # bytes
_LEAST_CHUNK = 256  # tokens; smaller ones would read and write the head's gradient too often


def configured_train_programs(
    config: Config,
    architecture: Architecture,
    graphdef: nnx.GraphDef,
    abstract_params: Any,
    shardings: Any,
    mesh: Mesh,
    *,
    supervised: bool = False,
    base: FrozenBase | None = None,
    teacher: FrozenTeacher | None = None,
) -> TrainPrograms:
    """The training programs of a run.

    ``supervised``: those of ``fr3e sft``, without a teacher; ``base``: the weights below adapters.
    """
    return TrainPrograms(
        graphdef,
        abstract_params,
        shardings,
        mesh,
        _optimizer(config.optimizer, config.optimizer.learning_rate),
        loss=None if supervised else loss_settings(config),
        token_chunk=token_chunk(config.training.token_chunk, architecture.vocab_size, kernel_platform(mesh)),
        options=forward_options(config, architecture, mesh),
        base=base,
        experts=architecture.num_experts,
        teacher=None if supervised else teacher,
    )


def configured_critic_programs(config: Config, architecture: Architecture, mesh: Mesh) -> CriticPrograms:
    """The critic programs of a run: ``critic`` sets learning rate and clip, the rest is set as for the policy."""
    return CriticPrograms(
        architecture,
        mesh,
        _optimizer(config.optimizer, config.critic.learning_rate),
        clip=config.critic.clip,
        param_dtype=config.model.param_dtype,
        compute_dtype=config.model.compute_dtype,
        options=forward_options(config, architecture, mesh),
    )


def token_chunk(most: int, vocab_size: int, platform: str) -> int:
    """Tokens of each shard whose logits exist at once: ``most``, on CPU no more than make 64 MiB of logits or 256.

    Three or four arrays of this size exist at once. On CPU smaller ones take no longer: a chunk of 1,024 tokens leaves
    every cache.
    """
    return most if platform != "cpu" else min(most, max(_LOGITS_ON_CPU // (4 * vocab_size), _LEAST_CHUNK))


def loss_settings(config: Config) -> LossSettings:
    """The settings of a run's policy loss."""
    loss, kl, shaping, teacher = config.loss, config.kl, config.shaping, config.teacher
    in_loss = bool(teacher.path) and teacher.place == "loss"
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
        entropy_advantage=(bonus.alpha, bonus.kappa) if shaping.steps[-1:] == ["entropy_advantage"] else None,
        function=user_loss(loss.function),
        covariance_penalty=shaping.kl_cov.coefficient if "kl_cov" in shaping.steps else None,
        teacher_weight=teacher.weight if in_loss else 0.0,
        teacher_beta=teacher.beta,
        teacher_selects=in_loss and teacher.entropy_share < 1,
    )


def forward_options(config: Config, architecture: Architecture, mesh: Mesh) -> ForwardOptions:
    """The options of a pass over rows, but for the layout."""
    training = config.training
    attention = chosen_attention(config.model.attention, kernel_platform(mesh), architecture.head_dim)
    return ForwardOptions(training.remat, training.attention_block, training.scan_layers, attention)


def _optimizer(o: OptimizerConfig, learning_rate: float) -> optax.GradientTransformation:
    return make_optimizer(
        learning_rate=learning_rate,
        warmup_updates=o.warmup_updates,
        decay_updates=o.decay_updates,
        beta2=o.beta2,
        weight_decay=o.weight_decay,
        max_grad_norm=o.max_grad_norm,
    )
