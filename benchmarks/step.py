"""Whole training steps of GRPO++ beside TRL's `GRPOTrainer`: the same model, prompts, rewards, lengths and batch.

    .venv/bin/python benchmarks/step.py --trl VENV/bin/python [--runs 3] [--steps 20] [--cores 1]

A step is what a user waits for: sampling, grading, one optimizer step on all rollouts, metrics. The model is Order's
warm start (0.15 M parameters, 256 rollouts of at most 20 tokens). The two take turns, each in a process of its own on
the same cores; figures are medians over processes, of the steps after the first three. TRL (newest release, with torch
and datasets) lives in an environment of its own and loads the same exported directory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "warm_starts" / "order"
_WARM_UP = 3  # steps that compile or fill caches


def reward(prompt: str, response: str, gold: str) -> float:
    """1 if what follows the last sign is the answer."""
    return float(response.rsplit(">", 1)[-1] == gold)


class Marks:
    """The clocks after each step."""

    def __init__(self) -> None:
        self.start, self.marks = time.perf_counter(), []

    def add(self) -> None:
        self.marks.append((time.process_time(), time.perf_counter()))

    def line(self) -> str:
        steps = len(self.marks) - 1 - _WARM_UP
        (cpu, wall), (cpu_end, wall_end) = self.marks[_WARM_UP], self.marks[-1]
        found = {
            "cpu_s": (cpu_end - cpu) / steps,
            "wall_s": (wall_end - wall) / steps,
            "first_step_s": self.marks[0][1] - self.start,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        return json.dumps(found)


def ours(args: argparse.Namespace) -> None:
    marks = Marks()
    import fr3e_jax as fr3e

    class Timer(fr3e.Callback):
        def on_step(self, step, metrics):
            marks.add()

    rollouts = args.prompts * args.generations
    settings = {
        "model.path": MODEL,
        "rollout.prompts_per_round": args.prompts,
        "rollout.rollouts_per_prompt": args.generations,
        "rollout.max_response_tokens": args.tokens,
        "rollout.reject_degenerate": "false",
        "training.batch_rollouts": rollouts,
        "training.mini_batch_rollouts": rollouts,
        "training.surplus": "drop",
        "training.max_sampled_tokens": 0,
        "training.max_steps": args.steps,
        "checkpoint.every": args.steps,
        "evaluation.every": 0,
        "evaluation.prompts": 4,
        "evaluation.samples": 1,
        "evaluation.pass_at": "[1]",
        "runtime.console": "none",
        "runtime.report": "false",
        "runtime.tensorboard": "false",
        "runtime.compilation_cache": args.cache,
        "runtime.output_dir": tempfile.mkdtemp(),
    }
    recipe, overrides = HERE.parent / "configs" / "demo_grpo.yaml", [f"{name}={x}" for name, x in settings.items()]
    problems = json.loads(Path(args.problems).read_text())
    fr3e.Trainer(recipe, reward=reward, problems=problems, callbacks=[Timer()], overrides=overrides).train()
    print(marks.line())


def trl(args: argparse.Namespace) -> None:
    marks = Marks()
    import torch

    torch.set_num_threads(args.cores)
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Timer(TrainerCallback):
        def on_step_end(self, *_, **__):
            marks.add()

    def rewards(prompts, completions, gold, **_):
        return [reward(*row) for row in zip(prompts, completions, gold, strict=True)]

    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=args.prompts * args.generations,
        num_generations=args.generations,
        max_completion_length=args.tokens,
        beta=0.0,
        learning_rate=2e-4,
        epsilon_high=0.28,
        max_steps=args.steps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="sdpa"),
        reward_funcs=rewards,
        args=settings,
        train_dataset=Dataset.from_list(json.loads(Path(args.problems).read_text())),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        callbacks=[Timer()],
    ).train()
    print(marks.line())


def compare(args: argparse.Namespace) -> None:
    """Let both run in turns, and print the medians and their ratios."""
    from fr3e_jax.configuration.schema import DataConfig
    from fr3e_jax.data.order_task import OrderTask

    folder = Path(tempfile.mkdtemp())
    args.problems = str(folder / "problems.json")
    rows = [{"prompt": p.prompt, "gold": p.gold} for p in OrderTask(DataConfig()).problems("train")[:4096]]
    Path(args.problems).write_text(json.dumps(rows))
    args.cache = args.cache or str(folder / "programs")
    one = {"OMP_NUM_THREADS": str(args.cores), "JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false"}
    found: dict[str, list[dict]] = {"ours": [], "trl": []}
    for _ in range(args.runs):
        for by, python in (("ours", sys.executable), ("trl", args.trl)):
            options = [f"--{name}={getattr(args, name)}" for name in ("problems", "cache", "steps", "cores")]
            options += [f"--{name}={getattr(args, name)}" for name in ("prompts", "generations", "tokens")]
            call = ["taskset", "-c", f"0-{args.cores - 1}", python, __file__, "--by", by, *options]
            done = subprocess.run(call, env=os.environ | one, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{by}: exit code {done.returncode}\n{done.stderr[-2000:]}")
            found[by].append(json.loads(done.stdout.splitlines()[-1]))
            print(by, found[by][-1], flush=True)
    for name in ("cpu_s", "wall_s", "first_step_s", "peak_mb"):
        left, right = (statistics.median(record[name] for record in found[by]) for by in ("ours", "trl"))
        print(f"{name}: ours {left:.3f}, trl {right:.3f}, {right / left:.2f}x")
    first = found["ours"][0]["first_step_s"]
    print(f"first_step_s of ours in the first process, which compiles unless --cache holds the programs: {first:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", default="", help="Python of an environment with trl, torch and datasets")
    parser.add_argument("--runs", type=int, default=3, help="processes of each; they take turns")
    parser.add_argument("--steps", type=int, default=23)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--generations", type=int, default=16, help="rollouts of a prompt")
    parser.add_argument("--tokens", type=int, default=20, help="longest response")
    parser.add_argument("--cache", default="", help="folder of our compiled programs; empty: a new one")
    parser.add_argument("--by", choices=("ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--problems", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.by and not args.trl:
        parser.error("--trl is missing; expected the Python of an environment with trl, torch and datasets")
    {"ours": ours, "trl": trl, None: compare}[args.by](args)


if __name__ == "__main__":
    main()
