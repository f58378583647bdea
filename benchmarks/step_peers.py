"""Whole training steps of GRPO as users of other libraries make them: TRL's `GRPOTrainer` and tunix's `GRPOLearner`.

`step.py` calls these functions in a process of another environment, which has the library and not this package.
"""

from __future__ import annotations

import itertools
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

WARM_UP = 3  # steps that compile or fill caches, unless `--warm_up` says another number


def right_answer(response: str, gold: str) -> float:
    """1 if what follows the last sign is the answer."""
    return float(response.rsplit(">", 1)[-1] == gold)


def even_length(response: str, gold: str) -> float:
    """1 for half of the responses of a random model."""
    return float(len(response) % 2 == 0)


REWARDS = {"order": right_answer, "words": even_length}


class Marks:
    """The clocks after each step."""

    def __init__(self, warm_up: int) -> None:
        self.start, self.marks, self.warm_up, self.tokens = time.perf_counter(), [], warm_up, []

    def add(self, tokens: float = 0.0) -> None:
        self.marks.append((time.process_time(), time.perf_counter()))
        self.tokens.append(tokens)

    def line(self, device_bytes: int = 0, more: dict | None = None) -> str:
        """The figures as JSON; of steps on a GPU, of which the last two are not counted, also its memory."""
        end = len(self.marks) - (3 if device_bytes else 1)
        steps = end - self.warm_up
        (cpu, wall), (cpu_end, wall_end) = self.marks[self.warm_up], self.marks[end]
        found = {
            "cpu_s": (cpu_end - cpu) / steps,
            "wall_s": (wall_end - wall) / steps,
            "tokens_per_cpu_s": sum(self.tokens[self.warm_up + 1 : end + 1]) / (cpu_end - cpu),
            "first_step_s": self.marks[0][1] - self.start,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        if device_bytes:
            walls = [self.start, *(wall for _, wall in self.marks)]
            found["device_gib"] = device_bytes / 2**30
            found["steps_s"] = [round(b - a, 3) for a, b in itertools.pairwise(walls)]
        return json.dumps(found | (more or {}))


def trl(args) -> None:
    marks = Marks(args.warm_up)
    import torch

    torch.set_num_threads(args.cores)
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Timer(TrainerCallback):
        sampled = 0

        def on_step_end(self, *_, **__):
            marks.add(self.sampled)
            self.sampled = 0

    timer, reward = Timer(), REWARDS[args.reward]

    def rewards(prompts, completions, gold, completion_ids, **_):
        timer.sampled += sum(len(ids) for ids in completion_ids)
        return [reward(response, answer) for response, answer in zip(completions, gold, strict=True)]

    rollouts = args.prompts * args.generations
    micro = args.micro or rollouts
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rollouts // micro,
        num_generations=args.generations,
        max_completion_length=args.tokens,
        beta=0.0,
        learning_rate=2e-4,
        epsilon_high=0.28,
        max_steps=args.steps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=not args.gpu,
        bf16=bool(args.gpu),
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16 if args.gpu else torch.float32, attn_implementation="sdpa"
        ),
        reward_funcs=rewards,
        args=settings,
        train_dataset=Dataset.from_list(json.loads(Path(args.problems).read_text())),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        callbacks=[timer],
    ).train()
    print(marks.line(torch.cuda.max_memory_allocated() if args.gpu else 0))


def tunix(args) -> None:
    """tunix's learner with its own JAX sampler ("vanilla"), which shares weights and mesh with the trainer."""
    marks = Marks(args.warm_up)
    import jax
    import optax
    from transformers import AutoTokenizer
    from tunix.rl import rl_cluster
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.rollout.base_rollout import RolloutConfig

    jax.config.update("jax_compilation_cache_dir", f"{args.cache}/tunix")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    tokenizer, reward = AutoTokenizer.from_pretrained(args.model), REWARDS[args.reward]
    rows = json.loads(Path(args.problems).read_text())
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    prompt = max(len(tokenizer(row["prompt"])["input_ids"]) for row in rows)
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-4, weight_decay=0.0)),
        eval_every_n_steps=args.steps + 1,
        max_steps=args.steps,
        mini_batch_size=args.prompts,
        train_micro_batch_size=(args.tunix_micro or args.prompts * args.generations) // args.generations,
        rollout_micro_batch_size=args.prompts,
        compute_logps_micro_batch_size=args.prompts,
    )
    rollouts = RolloutConfig(
        max_tokens_to_generate=args.tokens,
        max_prompt_length=prompt,
        kv_cache_size=prompt + args.tokens,
        temperature=1.0,
        top_p=1.0,
    )
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    cluster = rl_cluster.RLCluster(
        actor=_tunix_model(args.model, mesh),
        tokenizer=tokenizer,
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            rollout_engine="vanilla",
            training_config=training,
            rollout_config=rollouts,
        ),
    )
    sampled, generate = [0], cluster.generate

    def counted(*positional, **named):
        found = generate(*positional, **named)
        sampled[0] += sum(map(len, found.tokens))
        return found

    cluster.generate = counted

    def rewards(prompts, completions, gold, **_):
        return [reward(response, answer) for response, answer in zip(completions, gold, strict=True)]

    def batches():  # the learner asks for a batch when the step before has ended
        for step in range(args.steps):
            if step:
                marks.add(sampled[0])
                sampled[0] = 0
            some = [rows[(step * args.prompts + i) % len(rows)] for i in range(args.prompts)]
            yield {"prompts": np.array([r["prompt"] for r in some]), "gold": np.array([r["gold"] for r in some])}

    algorithm = GRPOConfig(
        num_generations=args.generations, num_iterations=1, beta=0.0, loss_agg_mode="token-mean", epsilon=0.2
    )
    algorithm.epsilon_high = 0.28  # the loss reads it, though the class does not declare it
    learner = GRPOLearner(cluster, algorithm, rewards)
    with mesh:
        learner.train(batches())
    marks.add(sampled[0])
    print(marks.line())


def _tunix_model(directory: str, mesh):
    import jax.numpy as jnp
    from tunix.models.qwen2 import model, params

    found = json.loads((Path(directory) / "config.json").read_text())
    config = model.ModelConfig(
        num_layers=found["num_hidden_layers"],
        vocab_size=found["vocab_size"],
        embed_dim=found["hidden_size"],
        hidden_dim=found["intermediate_size"],
        num_heads=found["num_attention_heads"],
        head_dim=found.get("head_dim") or found["hidden_size"] // found["num_attention_heads"],
        num_kv_heads=found["num_key_value_heads"],
        rope_theta=int(found["rope_theta"]),
        norm_eps=found["rms_norm_eps"],
        use_tied_embedding=found["tie_word_embeddings"],
    )
    return params.create_model_from_safe_tensors(directory, config, mesh, jnp.float32)
