"""Our names for settings of TRL, verl, tunix, MaxText and prime-rl."""

from __future__ import annotations

NAMES: dict[str, tuple[str, ...]] = {
    "num_generations": ("rollout.rollouts_per_prompt",),
    "num_rollouts": ("rollout.rollouts_per_prompt",),
    "n": ("rollout.rollouts_per_prompt",),
    "rollouts_per_example": ("rollout.rollouts_per_prompt",),
    "group_size": ("rollout.rollouts_per_prompt",),
    "beta": ("kl.coefficient",),
    "kl_coef": ("kl.coefficient",),
    "kl_loss_coef": ("kl.coefficient",),
    "kl_beta": ("kl.coefficient",),
    "use_kl_loss": ("kl.coefficient", "kl.place"),
    "lr": ("optimizer.learning_rate",),
    "learning_rate": ("optimizer.learning_rate",),
    "max_completion_length": ("rollout.max_response_tokens",),
    "max_response_length": ("rollout.max_response_tokens",),
    "max_new_tokens": ("rollout.max_response_tokens",),
    "max_tokens": ("rollout.max_response_tokens",),
    "total_generation_steps": ("rollout.max_response_tokens",),
    "max_prompt_length": ("data.max_prompt_tokens",),
    "per_device_train_batch_size": ("training.batch_rollouts", "training.micro_batch_tokens"),
    "train_batch_size": ("training.batch_rollouts", "rollout.prompts_per_round"),
    "generation_batch_size": ("rollout.prompts_per_round",),
    "ppo_mini_batch_size": ("training.mini_batch_rollouts",),
    "ppo_micro_batch_size": ("training.micro_batch_tokens",),
    "ppo_micro_batch_size_per_gpu": ("training.micro_batch_tokens",),
    "ppo_max_token_len_per_gpu": ("training.micro_batch_tokens",),
    "gradient_accumulation_steps": ("training.micro_batch_tokens",),
    "gradient_checkpointing": ("training.remat",),
    "num_iterations": ("training.epochs",),
    "ppo_epochs": ("training.epochs",),
    "num_train_epochs": ("training.max_steps", "training.max_sampled_tokens"),
    "total_training_steps": ("training.max_steps",),
    "steps": ("training.max_steps",),
    "batch_size": ("training.batch_rollouts",),
    "total_epochs": ("training.max_steps", "training.max_sampled_tokens"),
    "model_name_or_path": ("model.path",),
    "pretrained_model_name_or_path": ("model.path",),
    "model_path": ("model.path",),
    "output_dir": ("runtime.output_dir",),
    "logging_steps": ("evaluation.every",),
    "save_steps": ("checkpoint.every",),
    "save_freq": ("checkpoint.every",),
    "test_freq": ("evaluation.every",),
    "eval_steps": ("evaluation.every",),
    "report_to": ("runtime.trackers",),
    "logger": ("runtime.trackers",),
    "warmup_steps": ("optimizer.warmup_updates",),
    "warmup_ratio": ("optimizer.warmup_updates",),
    "lr_scheduler_type": ("optimizer.schedule",),
    "max_grad_norm": ("optimizer.max_grad_norm",),
    "grad_clip": ("optimizer.max_grad_norm",),
    "clip_ratio": ("loss.epsilon_low", "loss.epsilon_high"),
    "clip_ratio_low": ("loss.epsilon_low",),
    "clip_ratio_high": ("loss.epsilon_high",),
    "epsilon": ("loss.epsilon_low",),
    "epsilon_high": ("loss.epsilon_high",),
    "loss_agg_mode": ("loss.aggregation",),
    "loss_type": ("loss.aggregation",),
    "scale_rewards": ("advantage.base_estimator",),
    "adv_estimator": ("advantage.base_estimator",),
    "importance_sampling_level": ("loss.ratio",),
    "entropy_coeff": ("loss.entropy_coefficient",),
    "bf16": ("model.compute_dtype", "rollout.param_dtype"),
    "quantization": ("rollout.param_dtype",),
    "torch_dtype": ("model.compute_dtype", "model.param_dtype"),
    "reward_funcs": ("data.verifier",),
    "reward_fn": ("data.verifier",),
    "custom_reward_function": ("data.verifier",),
    "lora_rank": ("model.lora.rank",),
    "lora_r": ("model.lora.rank",),
    "lora_alpha": ("model.lora.alpha",),
    "lora_target_modules": ("model.lora.targets",),
    "target_modules": ("model.lora.targets",),
    "lora_adapter_path": ("model.lora.path",),
    "peft_config": ("model.lora.rank", "model.lora.targets"),
    "train_files": ("data.train",),
    "dataset_name": ("data.train",),
    "fsdp_size": ("mesh.fsdp",),
    "tensor_model_parallel_size": ("mesh.rollout_tensor", "mesh.tensor"),
    "context_parallel_size": ("mesh.context",),
    "ulysses_sequence_parallel_size": ("mesh.context",),
    "keep_samples": ("runtime.store_rollouts",),
    "join_seconds": ("runtime.heartbeat_seconds",),
    "micro_batch_size": ("training.micro_batch_tokens",),
    "share": ("rft.responses",),
}
"""The last part of their name, or of a former name of ours, in lower case, and our settings."""

_METHODS = "each method is a recipe: `fr3e methods` lists them"
_DECODER = "rollouts come from the decoder in this package; leave it out"
_DEVICES = (
    "all devices that jax finds are used; `mesh` divides them, and JAX_PLATFORMS=cpu in the environment hides others"
)
ELSEWHERE: dict[str, str] = {
    "output_dtype": "`fr3e export RUN DIR --dtype bf16` writes a model in another type",
    "algorithm": _METHODS,
    "method": _METHODS,
    "trainer": _METHODS,
    "use_vllm": _DECODER,
    "vllm_mode": _DECODER,
    "vllm_gpu_memory_utilization": _DECODER,
    "gpu_memory_utilization": _DECODER,
    "device": _DEVICES,
    "devices": _DEVICES,
    "num_gpus": _DEVICES,
    "n_gpus_per_node": _DEVICES,
    "nnodes": _DEVICES,
    "deepspeed": _DEVICES,
}
"""The same for what is no setting here: what to do instead."""


def our_names(path: str) -> tuple[str, ...]:
    """Our settings for a name of another trainer, with or without its sections; empty if it is unknown."""
    return NAMES.get(_last(path), ())


def instead(path: str) -> str:
    """Advice in place of setting this name of another trainer; empty if it is unknown."""
    return ELSEWHERE.get(_last(path), "")


def _last(path: str) -> str:
    return path.rsplit(".", 1)[-1].lower().replace("-", "_")
