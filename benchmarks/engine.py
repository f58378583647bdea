"""Run the engine for the side-by-side benchmark and print one JSON line per measurement.

    .venv/bin/python benchmarks/engine.py --bench BENCH --model MODELS/tiny --size tiny --mode decode --batch 64
    .venv/bin/python benchmarks/engine.py --bench BENCH --model MODELS/tiny --size tiny --mode branch
    .venv/bin/python benchmarks/engine.py --bench BENCH --model MODELS/tiny --size tiny --mode train
    .venv/bin/python benchmarks/engine.py --bench BENCH --model MODELS/tiny --size tiny --mode train_branch
    .venv/bin/python benchmarks/engine.py --bench BENCH --model MODELS/tiny --size tiny --mode logits

``BENCH`` is the folder of the harness (``workload.py``, ``spec.json``): prompts, anchors, training batch and the form
of the answer come from there. `benchmarks/README.md` says how to run the peers beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.mini_batches import MiniBatch, fill
from fr3e_jax.learning.packing import pack
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.network import ForwardOptions, bind, build_network
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.host_memory import keep_host_memory
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.optimizer_programs import make_optimizer
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.programs.shardings import param_shardings
from fr3e_jax.programs.train_programs import LossSettings, TrainPrograms
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Branch, CachedTrunk, Sampling, TrunkRequest


def timed(run):
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return result, time.perf_counter() - wall, time.process_time() - cpu


class Runner:
    def __init__(self, args, workload):
        self.args, self.workload, self.spec = args, workload, workload.load_spec(args.spec)
        self.architecture = read_architecture(Path(args.model))
        if not args.leave_memory:
            keep_host_memory()  # as `fr3e` does, before the first array
        self.mesh = make_mesh()
        self.graphdef, self.abstract, axes = build_network(
            self.architecture, param_dtype=args.dtype, compute_dtype=args.dtype
        )
        self.shardings = param_shardings(self.mesh, self.abstract, axes, self.architecture)
        self.params = load_params(args.model, self.architecture, self.abstract, self.shardings)
        self.record = {
            "runner": "fr3e_jax",
            "mode": args.mode,
            "size": args.size,
            "dtype": args.dtype,
            "versions": {name: version(name) for name in ("jax", "flax", "fr3e-jax")},
        }

    def engine(self, slots: int, lanes: int) -> RolloutEngine:
        programs = DecoderPrograms(self.graphdef, self.architecture, self.mesh)
        return RolloutEngine(programs, Shapes(slots, lanes, self.args.chunk), seed=0)

    def emit(self, runs, tokens: int) -> None:
        self.workload.emit(self.record, [wall for _, wall, _ in runs], tokens, [cpu for _, _, cpu in runs])

    def warm_up(self, run, calls: int = 1):
        """Make the first calls, which compile; return the last result."""
        warm = [timed(run) for _ in range(calls)]
        self.record["warmup_wall_cpu_s"] = [[round(wall, 2), round(cpu, 2)] for _, wall, cpu in warm]
        return warm[-1][0]

    # -- decoding ----------------------------------------------------------------------------------------------------

    def decode(self) -> None:
        batch, new = self.args.batch, self.args.new_tokens or self.spec["decode"]["new_tokens"]
        prompts = self.workload.decode_prompts(self.spec, self.architecture.vocab_size, batch).astype(np.int32)
        engine = self.engine(self.args.slots or batch, self.args.lanes or 1)

        def run(number: int):
            requests = [
                TrunkRequest(ids, [Branch(len(ids), (0, number, i), new, Sampling())]) for i, ids in enumerate(prompts)
            ]
            return engine.sample(self.params, requests)[0]

        rollouts = self.warm_up(lambda: run(0))
        assert all(len(rollout.token_ids) == new for row in rollouts for rollout in row)
        self.record |= {"batch": batch, "new_tokens": new}
        engine.take_counts()
        self.emit([timed(lambda n=n: run(1 + n)) for n in range(self.args.runs)], batch * new)

    def base_trunks(self, engine: RolloutEngine) -> list[CachedTrunk]:
        b = self.spec["branch"]
        prompts = self.workload.branch_prompts(self.spec, self.architecture.vocab_size).astype(np.int32)
        new = b["total_len"] - b["prompt_len"]
        requests = [TrunkRequest(p, [Branch(len(p), (0, 0, i), new, Sampling())]) for i, p in enumerate(prompts)]
        _, promoted = engine.sample(self.params, requests, select=lambda i, rollouts, wait: [0])
        return [promoted[i, 0] for i in range(len(prompts))]

    def branch_requests(self, trunks: list[CachedTrunk], number: int) -> list[TrunkRequest]:
        b = self.spec["branch"]
        branches: list[list[Branch]] = [[] for _ in trunks]
        for base, prefix in self.workload.anchors(self.spec):
            branches[base] += [
                Branch(prefix, (1, number, base, prefix, m), b["total_len"] - prefix, Sampling())
                for m in range(b["rollouts_per_anchor"])
            ]
        return [TrunkRequest(trunk, list_) for trunk, list_ in zip(trunks, branches, strict=True)]

    def branch(self) -> None:
        """Measure exploring from cached bases. One engine does both phases, as in a run; only exploring is timed."""
        b, counted = self.spec["branch"], self.workload.branch_accounting(self.spec)
        slots = self.args.slots or b["bases"] // 2  # twice as many lanes a trunk as with a slot for each base
        engine = self.engine(slots, self.args.lanes or b["lanes"] // slots)

        def run(number: int):
            trunks, _, base_cpu = timed(lambda: self.base_trunks(engine))  # consumed below: no cache is held twice
            engine.take_counts()
            result = timed(lambda: engine.sample(self.params, self.branch_requests(trunks, number))[0])
            rollouts, counts = result[0], engine.take_counts()
            assert sum(len(r.token_ids) for row in rollouts for r in row) == counted["generated"]
            assert counts.prefill_positions == 0, "a prefix was computed a second time"
            return result, base_cpu, counts

        (_, *warm_up), _, _ = run(0)
        runs, base_cpu, counts = zip(*(run(1 + number) for number in range(self.args.runs)), strict=True)
        self.record |= {
            "warmup_wall_cpu_s": [[round(seconds, 2) for seconds in warm_up]],
            "base_cpu_s": [round(seconds, 3) for seconds in base_cpu],
            "slots": engine.slots,
            "lanes": engine.slots * engine.lanes,
            "prefill_positions": counts[0].prefill_positions,
            "reused_prefix_positions": counts[0].reused_prefix_positions,
            "model_tokens_processed": counts[0].lane_steps,
            "lane_share": round(counts[0].sampled_tokens / counts[0].lane_steps, 3),
            "trunk_insertions": counts[0].trunk_insertions,
            "host_visits": counts[0].chunks,
        }
        self.emit(runs, counted["generated"])

    # -- training ----------------------------------------------------------------------------------------------------

    def train_programs(self) -> TrainPrograms:
        t = self.spec["train"]
        optimizer = make_optimizer(
            learning_rate=t["lr"],
            warmup_updates=0,
            decay_updates=0,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-8,
            weight_decay=t["weight_decay"],
            max_grad_norm=0.0,
        )
        loss = LossSettings(epsilon_low=t["clip_low"], epsilon_high=t["clip_high"])
        return TrainPrograms(
            self.graphdef,
            self.abstract,
            self.shardings,
            self.mesh,
            optimizer,
            loss=loss,
            token_chunk=self.args.token_chunk,
            options=ForwardOptions(self.args.remat, self.args.attention_block, self.args.scan_layers),
        )

    def optimizer_steps(self, trunks: list[TrainingTrunk], tokens: int, flattened_tokens: int) -> None:
        """Measure full optimizer steps on ``trunks``: the gradients of all micro-batches, then the update."""
        programs = self.train_programs()
        state = programs.init_optimizer(self.params)
        loss_tokens = sum(len(branch.token_ids) for trunk in trunks for branch in trunk.branches)

        def step():
            gradients = programs.zero_gradients(self.params)
            micros = pack(
                trunks,
                tokens=tokens,
                pad_id=0,
                key_cost=self.architecture.key_cost,
            )
            old = [[branch.sampler_logprobs for branch in trunk.branches] for trunk in trunks]
            fill([MiniBatch(list(range(len(trunks))), trunks, micros)], "old_logprobs", old)
            for micro in micros:
                gradients, _ = programs.accumulate(self.params, gradients, micro.batch, loss_tokens, 1.0)
            self.params, self.optimizer_state, norm = programs.apply(self.params, self.optimizer_state, gradients)
            float(norm)
            return micros

        self.optimizer_state = state
        # Two calls: the step after a compiling one pays, once a run, 0 to 2 s for pages that compiling gave back.
        micros = self.warm_up(step, calls=2)
        positions, padded = (sum(getattr(m, name) for m in micros) for name in ("positions", "padded_positions"))
        self.record |= {
            "microbatches": len(micros),
            "positions": positions,
            "padded_positions": padded,
            "useful_share": round(positions / padded, 3),
            "flattened_tokens": flattened_tokens,
        }
        runs = [timed(step) for _ in range(self.args.runs)]
        median_cpu = sorted(cpu for _, _, cpu in runs)[len(runs) // 2]
        self.record["positions_per_cpu_s"] = round(positions / median_cpu, 1)
        self.emit(runs, flattened_tokens)

    def train(self) -> None:
        t = self.spec["train"]
        ids, advantages = self.workload.train_batch(self.spec, self.architecture.vocab_size)
        prompt, size = t["prompt_len"], self.args.max_micro * t["microbatch"][self.args.size] or len(ids)
        trunks = []
        for row, advantage in zip(ids[:size].astype(np.int32), advantages[:size], strict=True):
            flat = np.full(len(row) - prompt, advantage, np.float32)
            old = np.full(len(row) - prompt, -np.log(self.architecture.vocab_size), np.float32)
            trunks.append(TrainingTrunk(row[:prompt], [TrainingBranch(prompt, row[prompt:], flat, old)], 0))
        per_call = t["microbatch"][self.args.size] * t["seq_len"]
        self.optimizer_steps(trunks, self.args.micro_batch_tokens or per_call, ids[:size].size)

    def train_branch(self) -> None:
        b = self.spec["branch"]
        rng, bases = np.random.default_rng(0), self.workload.branch_prompts(self.spec, self.architecture.vocab_size)
        draw = lambda n: rng.integers(1, self.architecture.vocab_size, n).astype(np.int32)
        bases = [np.concatenate([prompt, draw(b["total_len"] - b["prompt_len"])]).astype(np.int32) for prompt in bases]
        branches: list[list[TrainingBranch]] = [[] for _ in bases]
        for base, prefix in self.workload.anchors(self.spec):
            for _ in range(b["rollouts_per_anchor"]):
                new = b["total_len"] - prefix
                advantage = np.full(new, rng.standard_normal(), np.float32)
                old = np.full(new, -np.log(self.architecture.vocab_size), np.float32)
                branches[base].append(TrainingBranch(prefix, draw(new), advantage, old))
        count = sum(len(list_) for list_ in branches)
        if self.args.variant == "flattened":
            trunks = [
                TrainingTrunk(ids[: one.fork], [one], 0)
                for ids, list_ in zip(bases, branches, strict=True)
                for one in list_
            ]
        else:
            trunks = [TrainingTrunk(ids, list_, 0) for ids, list_ in zip(bases, branches, strict=True)]
        per_call = self.spec["train"]["microbatch"][self.args.size] * self.spec["train"]["seq_len"]
        self.optimizer_steps(trunks, self.args.micro_batch_tokens or per_call, count * b["total_len"])

    def logits(self) -> None:
        """Save logits of two prompts in ``MODEL/logits_fr3e.npy``; print their distance from the peer's, if saved."""
        ids = self.workload.decode_prompts(self.spec, self.architecture.vocab_size, 2).astype(np.int32)
        programs = DecoderPrograms(self.graphdef, self.architecture, self.mesh)
        hidden = programs.prefill(self.params, ids).hidden
        ours = np.asarray(bind(self.graphdef, self.params).logits(hidden))
        np.save(Path(self.args.model) / "logits_fr3e.npy", ours)
        theirs = Path(self.args.model) / "logits_hf.npy"
        if theirs.exists():
            self.record["max_abs_diff_vs_hf"] = float(np.abs(ours - np.load(theirs)).max())
        print(self.record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="folder of the harness: workload.py, spec.json")
    parser.add_argument("--model", required=True, help="Hugging Face directory made by the harness's make_model.py")
    parser.add_argument("--size", required=True, help="name of the model in spec.json")
    parser.add_argument("--mode", required=True, choices=["decode", "branch", "train", "train_branch", "logits"])
    parser.add_argument("--variant", default="shared", choices=["shared", "flattened"], help="rows of train_branch")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max_micro", type=int, default=0, help="train: only this many micro-batches' rows")
    parser.add_argument("--new_tokens", type=int, default=0, help="decode: new tokens instead of the spec's number")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--slots", type=int, default=0, help="trunk slots of the decoder")
    parser.add_argument("--lanes", type=int, default=0, help="lanes per trunk slot")
    parser.add_argument("--chunk", type=int, default=16, help="decode steps between two visits of the host")
    parser.add_argument("--micro_batch_tokens", type=int, default=0, help="train: positions of a micro-batch")
    parser.add_argument("--remat", default="none", choices=["none", "dots", "block"])
    parser.add_argument("--attention_block", type=int, default=0)
    parser.add_argument("--scan_layers", action="store_true")
    parser.add_argument("--token_chunk", type=int, default=1024)
    parser.add_argument("--leave_memory", action="store_true", help="return freed memory to the system")
    parser.add_argument("--spec")
    args = parser.parse_args()
    sys.path.insert(0, args.bench)
    import workload

    getattr(Runner(args, workload), args.mode)()


if __name__ == "__main__":
    main()
