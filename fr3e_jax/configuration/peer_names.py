"""Our names for settings of TRL, verl, tunix, MaxText and prime-rl."""

from __future__ import annotations

NAMES_OF: dict[tuple[str, ...], str] = {
    ("rollout.rollouts_per_prompt",): "num_generations num_rollouts n rollouts_per_example group_size",
    ("kl.coefficient",): "beta kl_coef kl_loss_coef kl_beta",
    ("kl.coefficient", "kl.place"): "use_kl_loss",
    ("optimizer.learning_rate",): "lr learning_rate",
    ("rollout.max_response_tokens",): (
        "max_completion_length max_response_length max_new_tokens max_tokens total_generation_steps"
    ),
    ("data.max_prompt_tokens",): "max_prompt_length",
    ("data.train_problems",): "train_max_samples max_train_samples",
    ("training.batch_rollouts", "training.micro_batch_tokens"): "per_device_train_batch_size",
    ("training.batch_rollouts", "rollout.prompts_per_round"): "train_batch_size",
    ("rollout.prompts_per_round",): "generation_batch_size",
    ("training.mini_batch_rollouts",): "ppo_mini_batch_size",
    ("training.micro_batch_tokens",): (
        "ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu "
        "gradient_accumulation_steps micro_batch_size"
    ),
    ("training.remat",): "gradient_checkpointing",
    ("training.epochs",): "num_iterations ppo_epochs",
    ("training.max_steps", "training.max_sampled_tokens"): "num_train_epochs total_epochs",
    ("training.max_steps",): "total_training_steps steps",
    ("training.batch_rollouts",): "batch_size",
    ("model.path",): "model_name_or_path pretrained_model_name_or_path model_path",
    ("runtime.output_dir",): "output_dir",
    ("evaluation.every",): "logging_steps test_freq eval_steps",
    ("checkpoint.every",): "save_steps save_freq",
    ("runtime.trackers",): "report_to logger",
    ("optimizer.warmup_updates",): "warmup_steps warmup_ratio",
    ("optimizer.decay_updates",): "lr_scheduler_type",
    ("optimizer.max_grad_norm",): "max_grad_norm grad_clip",
    ("loss.epsilon_low", "loss.epsilon_high"): "clip_ratio",
    ("loss.epsilon_low",): "clip_ratio_low epsilon",
    ("loss.epsilon_high",): "clip_ratio_high epsilon_high",
    ("loss.aggregation",): "loss_agg_mode loss_type",
    ("advantage.base_estimator",): "scale_rewards adv_estimator",
    ("loss.ratio",): "importance_sampling_level",
    ("loss.entropy_coefficient",): "entropy_coeff",
    ("model.compute_dtype", "rollout.param_dtype"): "bf16",
    ("rollout.param_dtype",): "quantization",
    ("model.compute_dtype", "model.param_dtype"): "torch_dtype",
    ("rollout.stop_tokens",): "stop_token_ids eos_token_id",
    ("rollout.stop_texts",): "stop stop_strings stop_words",
    ("data.verifier",): "reward_funcs reward_fn custom_reward_function",
    ("judge.key_variable",): "api_key openai_api_key",
    ("judge.base_url",): "base_url api_base openai_api_base",
    ("teacher.path",): "teacher_model_name_or_path teacher_model",
    ("model.lora.rank",): "lora_rank lora_r",
    ("model.lora.alpha",): "lora_alpha",
    ("model.lora.targets",): "lora_target_modules target_modules",
    ("model.lora.path",): "lora_adapter_path",
    ("model.lora.rank", "model.lora.targets"): "peft_config",
    ("data.train",): "train_files dataset_name",
    ("mesh.fsdp",): "fsdp_size",
    ("mesh.rollout_tensor", "mesh.tensor"): "tensor_model_parallel_size",
    ("mesh.context",): "context_parallel_size ulysses_sequence_parallel_size",
}
"""The last part of their names, in lower case, for our settings."""
ADVICE_ON: dict[str, str] = {
    "each method is a recipe: `fr3e methods` lists them": "algorithm method trainer",
    "rollouts come from the decoder in this package; leave it out": (
        "use_vllm vllm_mode vllm_gpu_memory_utilization gpu_memory_utilization"
    ),
    "all devices that jax finds are used; `mesh` divides them, and JAX_PLATFORMS=cpu in the environment hides others": (
        "device devices num_gpus n_gpus_per_node nnodes deepspeed"
    ),
}
"""The same for what is no setting here: what to do instead."""
NAMES = {name: ours for ours, names in NAMES_OF.items() for name in names.split()}
ELSEWHERE = {name: advice for advice, names in ADVICE_ON.items() for name in names.split()}


def our_names(path: str) -> tuple[str, ...]:
    """Our settings for a name of another trainer, with or without its sections; empty if it is unknown."""
    return NAMES.get(_last(path), ())


def instead(path: str) -> str:
    """Advice in place of setting this name of another trainer; empty if it is unknown."""
    return ELSEWHERE.get(_last(path), "")


def _last(path: str) -> str:
    return path.rsplit(".", 1)[-1].lower().replace("-", "_")
