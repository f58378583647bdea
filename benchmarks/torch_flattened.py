"""The cost of the branch workload in a trainer that flattens it: torch, with each of the 512 rollouts as a sequence.

    .venv-parity/bin/python benchmarks/torch_flattened.py --bench BENCH --model MODELS/tiny --size tiny [--max_micro 4]

It prints one JSON line in the harness's form (`workload.emit`), for comparison with ``benchmarks/engine.py --mode
train_branch``. Anchors and lengths are the same; micro-batch and optimizer are those of the harness's peers. To be
fair, it applies the head only to tokens with a loss. With ``--max_micro`` it times every k-th rollout, so that all
prefix lengths take part, and scales the time of the micro-batches to all rollouts.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch
import transformers
from transformers import Qwen2ForCausalLM


def timed(run):
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def flattened_rollouts(workload, spec, vocab: int):
    """Ids ``[rollouts, T]``, with the prefix length and the advantage of each rollout."""
    b, rng = spec["branch"], np.random.default_rng(0)
    prefixes = np.repeat([prefix for _, prefix in workload.anchors(spec)], b["rollouts_per_anchor"])
    ids = rng.integers(1, vocab, (len(prefixes), b["total_len"]))
    return (
        torch.from_numpy(ids),
        torch.from_numpy(prefixes),
        torch.from_numpy(rng.standard_normal(len(prefixes))).float(),
    )


def micro_batch(model, spec, ids, prefixes, advantages, loss_tokens: int) -> None:
    """Forward and backward pass of the clipped surrogate. As in the harness's peers, old log-probs are this pass's."""
    t = spec["train"]
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1]
    counts = torch.arange(1, ids.shape[1])[None] >= prefixes[:, None]
    logits = model.lm_head(hidden[counts]).float()
    logprobs = -torch.nn.functional.cross_entropy(logits, ids[:, 1:][counts], reduction="none")
    ratio = torch.exp(logprobs - logprobs.detach())
    weights = advantages[:, None].expand(counts.shape)[counts]
    clipped = ratio.clamp(1 - t["clip_low"], 1 + t["clip_high"])
    (-torch.minimum(ratio * weights, clipped * weights).sum() / loss_tokens).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="folder of the harness: workload.py, spec.json")
    parser.add_argument("--model", required=True, help="Hugging Face directory made by the harness's make_model.py")
    parser.add_argument("--size", required=True, help="name of the model in spec.json")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max_micro", type=int, default=0, help="time only this many micro-batches, evenly chosen")
    parser.add_argument("--spec")
    args = parser.parse_args()
    sys.path.insert(0, args.bench)
    import workload

    torch.set_num_threads(1)
    spec = workload.load_spec(args.spec)
    t, b, size = spec["train"], spec["branch"], spec["train"]["microbatch"][args.size]
    model = Qwen2ForCausalLM.from_pretrained(args.model, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=t["lr"], weight_decay=t["weight_decay"], foreach=True)
    ids, prefixes, advantages = flattened_rollouts(workload, spec, model.config.vocab_size)
    loss_tokens, whole = int((b["total_len"] - prefixes).sum()), len(ids) // size
    count = min(args.max_micro or whole, whole)
    order = torch.arange(len(ids)).reshape(-1, len(ids) // (count * size))[:, 0].reshape(count, size)

    def step() -> tuple[float, float]:
        optimizer.zero_grad(set_to_none=True)
        passes = timed(
            lambda: [micro_batch(model, spec, ids[m], prefixes[m], advantages[m], loss_tokens) for m in order]
        )
        update = timed(optimizer.step)
        return tuple(p * whole / count + u for p, u in zip(passes, update, strict=True))

    record = {
        "runner": "transformers",
        "mode": "train_branch",
        "variant": "flattened",
        "size": args.size,
        "dtype": "float32",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "microbatch": size,
        "micro_timed": count,
        "loss_tokens": loss_tokens,
        "timed_loss_tokens": int((b["total_len"] - prefixes[order]).sum()) * whole // count,
    }
    step()
    runs = [step() for _ in range(args.runs)]
    workload.emit(record, [wall for wall, _ in runs], ids.numel(), [cpu for _, cpu in runs])


if __name__ == "__main__":
    main()
