"""The cost of the explore phase for several numbers of anchors (K), rollouts per state (M), prefix lengths and lanes.

    .venv/bin/python benchmarks/sweep.py --bench BENCH --model MODELS/tiny [--runs 3] [--vary prefix]

Each row of the table varies one number. It is sampled in two ways: as branches of cached trunks, and with the prefix
computed anew for each rollout, as a sampler without trunks does. The first cost should depend on the new tokens alone:
CPU milliseconds per new token stay level as the prefix and the number of branches grow, except for the attention to the
prefix. JSON lines go to stdout, the table to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from engine import Runner, timed  # the folder of this file is on the path of a script

from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Branch, CachedTrunk, Sampling, TrunkRequest


@dataclasses.dataclass(frozen=True)
class Point:
    """``trunks`` base sequences of ``prefix`` tokens, each with ``anchors`` states of ``rollouts`` branches."""

    trunks: int = 4
    anchors: int = 4
    rollouts: int = 8
    prefix: int = 192
    new: int = 64
    lanes: int = 64

    @property
    def tokens(self) -> int:
        return self.trunks * self.anchors * self.rollouts * self.new

    def forks(self) -> list[int]:
        """Forks spread evenly over the second half of the prefix, the last one at its end."""
        return [int(fork) for fork in np.linspace(self.prefix // 2, self.prefix, self.anchors + 1)[1:]]


SWEEP = {
    "anchors": [1, 2, 4, 8],
    "rollouts": [4, 8, 16, 32],
    "prefix": [64, 128, 256, 512],
    "lanes": [16, 32, 64, 128],
}


def branches_of(point: Point, trunk: int, number: int) -> list[Branch]:
    return [
        Branch(fork, (1, number, trunk, fork, m), point.new, Sampling())
        for fork in point.forks()
        for m in range(point.rollouts)
    ]


def shared(engine: RolloutEngine, params, point: Point, trunks: list[CachedTrunk], number: int) -> None:
    requests = [
        TrunkRequest(dataclasses.replace(trunk), branches_of(point, i, number)) for i, trunk in enumerate(trunks)
    ]
    engine.sample(params, requests)


def prefilled(engine: RolloutEngine, params, point: Point, trunks: list[CachedTrunk], number: int) -> None:
    """Sample the same branches, each with its own prefix: one lane in each slot."""
    requests = [
        TrunkRequest(trunk.token_ids[: branch.fork], [branch])
        for i, trunk in enumerate(trunks)
        for branch in branches_of(point, i, number)
    ]
    engine.sample(params, requests)


def measure(runner: Runner, point: Point, runs: int) -> dict:
    rng = np.random.default_rng(0)
    ids = rng.integers(1, runner.architecture.vocab_size, (point.trunks, point.prefix)).astype(np.int32)
    own, many = runner.engine(point.trunks, point.lanes // point.trunks), runner.engine(point.lanes, 1)
    batch = own.programs.prefill(runner.params, ids)
    trunks = [CachedTrunk(row, batch, i) for i, row in enumerate(ids)]
    record = dataclasses.asdict(point) | {"new_tokens": point.tokens}
    for name, engine, way in (("shared", own, shared), ("prefilled", many, prefilled)):
        way(engine, runner.params, point, trunks, 0)  # compiles
        engine.take_counts()
        seconds = [timed(partial(way, engine, runner.params, point, trunks, n))[2] for n in range(1, runs + 1)]
        counts = engine.take_counts()
        record[name] = {
            "cpu_s": [round(x, 3) for x in seconds],
            "ms_per_new_token": round(1e3 * statistics.median(seconds) / point.tokens, 3),
            "prefill_positions": counts.prefill_positions // runs,
            "lane_share": round(counts.sampled_tokens / counts.lane_steps, 3),
        }
    return record


def table(records: list[tuple[str, dict]]) -> str:
    lines = [
        "| varied | K | M | prefix | lanes | new tokens | ms per new token | prefilled anew | ratio | prefilled |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, r in records:
        ours, anew = r["shared"], r["prefilled"]
        cells = [name, r["anchors"], r["rollouts"], r["prefix"], r["lanes"], r["new_tokens"]]
        cells += [ours["ms_per_new_token"], anew["ms_per_new_token"]]
        cells += [f"{anew['ms_per_new_token'] / ours['ms_per_new_token']:.2f}x"]
        cells += [f"{ours['prefill_positions']} / {anew['prefill_positions']}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="folder of the harness: workload.py, spec.json")
    parser.add_argument("--model", required=True, help="Hugging Face directory made by the harness's make_model.py")
    parser.add_argument("--vary", choices=sorted(SWEEP), nargs="*", default=list(SWEEP))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=16, help="decode steps between two visits of the host")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    sys.path.insert(0, args.bench)
    import workload

    options = SimpleNamespace(leave_memory=False, **vars(args), size=Path(args.model).name, mode="sweep", spec=None)
    runner, records = Runner(options, workload), []
    for name in args.vary:
        for value in SWEEP[name]:
            record = measure(runner, dataclasses.replace(Point(), **{name: value}), args.runs)
            print(json.dumps({"varied": name} | record), flush=True)
            records.append((name, record))
    print(table(records), file=sys.stderr)


if __name__ == "__main__":
    main()
