"""Whole training steps beside what a user of torch would run: the same model, prompts, rewards, lengths and batch.

    .venv/bin/python benchmarks/step.py --trl VENV/bin/python --tunix VENV2/bin/python [--runs 3] [--cores 1]
    .venv/bin/python benchmarks/step.py --trl VENV/bin/python --bench BENCH --work tiny --steps 6 --warm_up 2

A step is what a user waits for: sampling, grading, one optimizer step on all rollouts, metrics. ``order`` is Order's
warm start (0.15 M parameters, 256 rollouts of at most 20 tokens), ``tiny`` has 8.7 M parameters and ``slice`` 88 M (64
and 32 rollouts, prompts of 64 tokens). ``smol`` is SmolLM2-135M-Instruct, which `smollm2.py` writes to
BENCH/MODELS/smollm2 (32 rollouts of at most 64 tokens). Their peers are `GRPOTrainer` of TRL's newest release and
tunix's `GRPOLearner` (`step_peers.py`).

``gpu_0.5b`` and ``gpu_1.5b`` run on one GPU in bfloat16: GRPO++ at the sizes of Qwen2.5 with random weights, which
`worded_model.py` makes, 512 rollouts of at most 512 tokens, beside TRL. ``gpu_gsm8k_0.5b`` and ``gpu_gsm8k_1.5b`` are
steps of `configs/fr3e_gsm8k.yaml` as it is shipped, without a peer; `fr3e plan` says what they should take. Works on a
GPU take ``--steps 4 --warm_up 0``: the third step is profiled, its table is printed, and only the second one counts.

``tiny_fr3e`` is FR3E with 4 prompts, 16 bases each, and 8 rollouts from each of 4 anchors on a
correct and a wrong base; ``tiny_tree`` is TreeRL with 8 prompts, 6 bases each, and 2 rollouts from each of 2 anchors on
every base. Their peer is written by hand on transformers (`step_by_hand.py`). Anchors are evenly spaced in both, so
that both sample and train as many tokens. All take turns, each in a process of its own on the same cores; figures are
medians over processes, of the steps after the first ones. The peers live in environments of their own and load the same
directory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path

from step_by_hand import by_hand
from step_peers import REWARDS, WARM_UP, Marks, trl, tunix
from worded_model import add_tokenizer
from worded_model import problems as word_problems

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Work:
    """A model and the shape of a step."""

    model: Path
    prompts: int
    generations: int  # rollouts of a prompt
    tokens: int  # longest response
    words: int = 0  # of a random prompt; 0: problems of Order
    micro: int = 0  # rows of a micro-batch on torch; 0: all
    tunix_micro: int = 0  # rows of tunix's micro-batch, a multiple of the generations; 0: all
    micro_tokens: int = 4096  # positions of ours
    slots: int = 16
    lanes: int = 17
    chunk: int = 8
    anchors: int = 0  # of a base; 0: GRPO++, otherwise FR3E
    branches: int = 8  # rollouts from each state
    tree: int = 0  # 1: TreeRL, every base is expanded and trains, too
    even: int = 1  # 1: anchors evenly spaced in place of the most uncertain ones, so that all sample as many tokens
    gpu: int = 0  # 1: on a GPU in bfloat16
    recipe: str = ""  # of ours, with the problems of this benchmark; its own sizes, not the fields above; empty: none

    @property
    def rollouts(self) -> int:
        """The least rollouts that train, in whole bases; all but one fill the batch: a short one has fewer anchors."""
        if not self.anchors:
            return self.prompts * self.generations
        expanded = self.prompts * (self.generations if self.tree else 2)
        return (expanded - 1) * (self.anchors * self.branches + self.tree) + 1


def works(bench: Path) -> dict[str, Work]:
    """GRPO++ on Order's warm start and on two models of random weights, and FR3E on the smaller of these."""
    tiny, slice_ = bench / "MODELS" / "tiny", bench / "MODELS" / "slice"
    grpo = Work(tiny, 8, 8, 256, words=64, micro=16, tunix_micro=16, micro_tokens=2560, slots=8, lanes=8, chunk=16)
    gpu = Work(slice_, 32, 16, 512, words=128, micro=32, micro_tokens=16384, slots=32, lanes=16, chunk=32, gpu=1)
    gsm8k = replace(gpu, words=380, recipe="fr3e_gsm8k.yaml")
    sizes = {size: bench / "MODELS" / f"qwen2.5-{size}" for size in ("0.5b", "1.5b")}
    return {
        **{f"gpu_{size}": replace(gpu, model=model) for size, model in sizes.items()},
        **{f"gpu_gsm8k_{size}": replace(gsm8k, model=model) for size, model in sizes.items()},
        "order": Work(ROOT / "warm_starts" / "order", 16, 16, 20),
        "tiny": grpo,
        "smol": replace(
            grpo,
            model=bench / "MODELS" / "smollm2",
            prompts=4,
            tokens=64,
            micro=8,
            tunix_micro=8,
            micro_tokens=640,
            slots=4,
        ),
        "slice": replace(grpo, model=slice_, prompts=4, tokens=128, micro=8, tunix_micro=8, micro_tokens=1536, slots=4),
        "tiny_fr3e": replace(grpo, prompts=4, generations=16, slots=4, lanes=16, anchors=4),
        "tiny_tree": replace(grpo, generations=6, lanes=6, anchors=2, branches=2, tree=1),
    }


def ours(args: argparse.Namespace) -> None:
    marks = Marks(args.warm_up)
    import jax

    import fr3e_jax as fr3e

    reward = REWARDS[args.reward]

    class Timer(fr3e.Callback):
        def on_step(self, step, metrics):
            marks.add(metrics["tokens/sampled_tokens"])

    settings = {
        "model.path": args.model,
        "rollout.prompts_per_round": args.prompts,
        "rollout.rollouts_per_prompt": args.generations,
        "rollout.max_response_tokens": args.tokens,
        "rollout.reject_degenerate": "false",
        "rollout.trunk_slots": args.slots,
        "rollout.lanes_per_trunk": args.lanes,
        "rollout.decode_chunk": args.chunk,
        "explore.enabled": "true" if args.anchors else "false",
        "explore.num_anchors": args.anchors or 4,
        "explore.rollouts_per_state": args.branches,
        "training.batch_rollouts": args.rollouts,
        "training.mini_batch_rollouts": args.rollouts,
        "training.micro_batch_tokens": args.micro_tokens,
        "training.surplus": "drop",
        "training.max_sampled_tokens": 0,
        "training.max_steps": args.steps,
        "optimizer.warmup_updates": 0,
        "checkpoint.every": args.steps,
        "evaluation.every": 0,
        "evaluation.prompts": 4,
        "evaluation.samples": 1,
        "evaluation.pass_at": "[1]",
        "runtime.console": "none",
        "runtime.report": "false",
        "runtime.trackers": "[]",
        "runtime.compilation_cache": args.cache,
        "runtime.output_dir": tempfile.mkdtemp(),
    }
    if args.anchors and args.even:
        settings["explore.anchor_selection"] = "uniform"
    if args.tree:
        settings |= {
            "explore.max_correct": args.generations,
            "explore.max_wrong": args.generations,
            "explore.block_credit": "true",
            "advantage.state_estimator": "tree",
            "advantage.modulation": "none",
        }
    if args.words:
        settings["data.max_prompt_tokens"] = args.words
    if args.recipe:
        changed = ("data.", "rollout.", "explore.", "training.", "optimizer.")
        settings = {name: x for name, x in settings.items() if not name.startswith(changed)}
        settings |= {"training.max_steps": args.steps}
    if args.gpu:
        settings |= {"model.param_dtype": "float32", "model.compute_dtype": "bfloat16"}
        settings |= {"evaluation.start": "false", "evaluation.end": "false", "runtime.profile_steps": 1}
    recipe = ROOT / "configs" / (args.recipe or "demo_grpo.yaml")
    overrides = [f"{name}={x}" for name, x in settings.items()]
    problems = json.loads(Path(args.problems).read_text())
    rewarded = lambda prompt, response, gold: reward(response, gold)
    trainer = fr3e.Trainer(recipe, reward=rewarded, problems=problems, callbacks=[Timer()], overrides=overrides)
    run_dir = trainer.train().run_dir
    if not args.gpu:
        return print(marks.line())
    table = (run_dir / "profile" / "table.txt").read_text()  # of the third step
    print(marks.line(jax.local_devices()[0].memory_stats()["peak_bytes_in_use"], {"profile": table}))


def prepare(work: Work, folder: Path) -> tuple[Path, list[dict[str, str]], str]:
    """The model's directory, the problems, and the name of their reward."""
    if (work.model / "tokenizer.json").exists() and work.words:
        return work.model, word_problems(1024, work.words // 2), "words"  # at most two tokens a word
    if work.words:
        return add_tokenizer(work.model, folder / "model"), word_problems(1024, work.words), "words"
    from fr3e_jax.configuration.schema import DataConfig
    from fr3e_jax.data.order_task import OrderTask

    rows = OrderTask(DataConfig()).problems("train")[:4096]
    return work.model, [{"prompt": p.prompt, "gold": p.gold} for p in rows], "order"


def compare(args: argparse.Namespace) -> None:
    """Let all run in turns, and print the medians and the ratios."""
    work, folder = works(Path(args.bench).resolve())[args.work], Path(tempfile.mkdtemp())
    micro = {"micro": args.micro or work.micro, "tunix_micro": args.tunix_micro or work.tunix_micro}
    work = replace(work, **micro)
    model, problems, reward = prepare(work, folder)
    (folder / "problems.json").write_text(json.dumps(problems))
    options = vars(work) | {"model": model, "problems": folder / "problems.json", "reward": reward}
    options |= {name: getattr(args, name) for name in ("steps", "warm_up", "cores")} | {"rollouts": work.rollouts}
    options |= {"cache": args.cache or folder / "programs"}
    one = {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
    if not work.gpu:
        one |= {"OMP_NUM_THREADS": str(args.cores), "JAX_PLATFORMS": "cpu"}
    pythons = {"ours": sys.executable}
    if not work.recipe:
        pythons |= {"by_hand": args.trl} if work.anchors else {"trl": args.trl, "tunix": args.tunix}
    found: dict[str, list[dict]] = {by: [] for by, python in pythons.items() if python}
    cores = f"{args.core}-{args.core + args.cores - 1}"
    for _ in range(args.runs):
        for by, records in found.items():
            flags = [f"--{name}={value}" for name, value in options.items()]
            pinned = [] if work.gpu else ["taskset", "-c", cores]
            call = [*pinned, pythons[by], __file__, "--by", by, *flags]
            done = subprocess.run(call, env=os.environ | one, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{by}: exit code {done.returncode}\n{done.stderr[-2000:]}")
            records.append(json.loads(done.stdout.splitlines()[-1]))
            print(records[-1].pop("profile", ""), end="")
            print(by, records[-1], flush=True)
    for line in summary(found):
        print(line)


def summary(found: dict[str, list[dict]]) -> list[str]:
    """A line for each figure: medians over the processes of each runner, and how many times better ours is.

    The first process of each runner is left out of the median of ``first_step_s``: it compiles, where there is a cache.
    """
    lines = []
    figures = ("cpu_s", "wall_s", "tokens_per_cpu_s", "first_step_s", "peak_mb", "device_gib")
    for name in (name for name in figures if name in found["ours"][0]):
        first = int(name == "first_step_s" and len(found["ours"]) > 1)
        medians = {by: statistics.median(record[name] for record in records[first:]) for by, records in found.items()}
        ours = medians.pop("ours")
        peers = [
            f"{by} {theirs:.3f}, {ours / theirs if name == 'tokens_per_cpu_s' else theirs / ours:.2f}x"
            for by, theirs in medians.items()
        ]
        lines.append("; ".join([f"{name}: ours {ours:.3f}", *peers]))
    cold = [f"{by} {records[0]['first_step_s']:.1f}" for by, records in found.items()]
    return [*lines, f"first_step_s of the first processes, cold unless --cache holds programs: {', '.join(cold)}"]


def one_of_them(by: str, flags: list[str]) -> None:
    """A process of `compare`, which passes the work's fields as flags."""
    parser = argparse.ArgumentParser()
    for field in fields(Work):
        parser.add_argument(f"--{field.name}", type=str if field.name in ("model", "recipe") else int)
    for name in ("problems", "reward", "cache"):
        parser.add_argument(f"--{name}")
    for name in ("steps", "warm_up", "cores", "rollouts"):
        parser.add_argument(f"--{name}", type=int)
    {"ours": ours, "trl": trl, "tunix": tunix, "by_hand": by_hand}[by](parser.parse_args(flags))


def main() -> None:
    if sys.argv[1:2] == ["--by"]:
        return one_of_them(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", default="", help="Python of an environment with trl, torch and datasets")
    parser.add_argument("--tunix", default="", help="Python of an environment with google-tunix; empty: without it")
    parser.add_argument("--work", choices=sorted(works(Path())), default="order")
    parser.add_argument("--bench", default="", help="folder of the harness, with MODELS/tiny and MODELS/slice")
    parser.add_argument("--runs", type=int, default=3, help="processes of each; they take turns")
    parser.add_argument("--steps", type=int, default=23)
    parser.add_argument("--warm_up", type=int, default=WARM_UP, help="steps that are not counted")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--core", type=int, default=0, help="number of the first core")
    parser.add_argument("--micro", type=int, default=0, help="rows of a micro-batch on torch; 0: as the work has it")
    parser.add_argument("--tunix_micro", type=int, default=0, help="rows of tunix's micro-batch; 0: as the work has it")
    parser.add_argument("--cache", default="", help="folder of compiled programs, ours and tunix's; empty: a new one")
    args = parser.parse_args()
    work = works(Path())[args.work]
    if work.gpu and (args.steps, args.warm_up) != (4, 0):
        parser.error(f"--work {args.work} needs --steps 4 --warm_up 0: the last two are profiled and traced")
    if not args.trl and not work.gpu and (work.anchors or not args.tunix):
        parser.error("--trl is missing: there is no peer to compare with (--tunix alone does for GRPO++)")
    if work.words and not args.bench:
        parser.error(f"--bench is missing; --work {args.work} has a model of the harness (README.md)")
    compare(args)


if __name__ == "__main__":
    main()
