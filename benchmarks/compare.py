"""Measure the engine and its peers in turn on one core, and print the table of ratios of `benchmarks/README.md`.

    .venv/bin/python benchmarks/compare.py --bench BENCH --out FOLDER [--only decode_tiny branch_tiny] [--runs 3]

Each measurement is a separate process, pinned to one core with one thread. The engine and its peers take turns,
``--runs`` times, so that a busy minute affects all of them; the figure is the median over the processes. Every JSON
line is kept in ``FOLDER/lines.jsonl`` with the process's peak memory (by `/usr/bin/time`). Lines that are there already
count, so a comparison can be spread over several calls. Peers may need another Python: ``--torch
.venv-parity/bin/python --tunix VENV/bin/python``; tunix is left out without one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}
_INSIDE_RUNS = 1  # runs within each process, because the median is taken over processes


@dataclass(frozen=True)
class Work:
    """A row of the table."""

    ours: str  # our command: script and options
    peers: dict[str, str]  # the command of each peer
    must: float  # the ratio to the best peer that is required
    aim: float  # the ratio that is aimed at
    beside: dict[str, tuple[float, float]] = field(default_factory=dict)  # the same two beside one of the peers
    memory: bool = False  # compare peak memory, too
    most_mb: tuple[int, int] = (0, 0)  # peak memory that is required, and aimed at; 0: no bar


def works() -> dict[str, Work]:
    found = {}
    for size, new, bars in (("tiny", "", (1.9, 2.2)), ("slice", " --new_tokens 128", (1.3, 1.5))):
        decode = f"--size {size} --mode decode --batch 64{new}"
        peers = {"transformers": f"peer_transformers.py {decode}", "tunix": f"peer_tunix.py {decode}"}
        found[f"decode_{size}"] = Work(f"engine.py {decode}", peers, *bars)
    for size, bars, beside in (("tiny", (3.2, 4.2), {"per_anchor": (4.2, 5.5)}), ("slice", (2.5, 4.0), {})):
        branch = f"--size {size} --mode branch"
        variants = ("per_anchor", "fork", "fork_sorted")  # the last two cut the cache by hand
        peers = {variant: f"peer_transformers.py {branch} --variant {variant}" for variant in variants}
        ours = f"engine.py {branch} --slots 4 --lanes 16 --chunk 32"
        found[f"branch_{size}"] = Work(ours, peers, *bars, beside, memory=True)
    shared = "--size tiny --max_micro 4"
    peers = {"torch": f"torch_flattened.py {shared}"}
    ours = "engine.py --size tiny --mode train_branch --micro_batch_tokens 2560"
    found["train_branch_tiny"] = Work(ours, peers, 2.5, 3.2, memory=True, most_mb=(2500, 2000))
    for size in ("tiny", "slice"):
        train = f"--size {size} --mode train --max_micro 1"
        peers = {"transformers": f"peer_transformers.py {train}"}
        found[f"train_{size}"] = Work(f"engine.py {train}", peers, 0.8, 1.0)
    return found


class Comparison:
    def __init__(self, args):
        self.args, self.lines = args, Path(args.out) / "lines.jsonl"
        self.lines.parent.mkdir(parents=True, exist_ok=True)
        self.records = [json.loads(line) for line in self.lines.read_text().splitlines()] if self.lines.exists() else []
        self.environment = os.environ | ONE_THREAD | {"JAX_COMPILATION_CACHE_DIR": str(self.lines.parent / "xla")}

    def python_of(self, runner: str) -> str:
        return {"ours": sys.executable, "tunix": self.args.tunix}.get(runner, self.args.torch)

    def measure(self, work: str, runner: str, command: str) -> None:
        """Run one process; append its JSON line and peak memory to the file."""
        script, *options = command.split()
        own = HERE / script
        size = options[options.index("--size") + 1]
        model = str(Path(self.args.bench) / "MODELS" / size)
        call = [self.python_of(runner), str(own if own.exists() else Path(self.args.bench) / script), *options]
        call += ["--model", model, "--runs", str(_INSIDE_RUNS), *(["--bench", self.args.bench] if own.exists() else [])]
        pinned = ["/usr/bin/time", "-f", "PEAK_KB %M", "taskset", "-c", str(self.args.core), *call]
        done = subprocess.run(pinned, cwd=self.args.bench, env=self.environment, capture_output=True, text=True)
        found = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not found:
            raise SystemExit(
                f"{work}, {runner}: exit code {done.returncode} of {' '.join(call)}\n{done.stderr[-2000:]}"
            )
        peak = next(line for line in done.stderr.splitlines() if line.startswith("PEAK_KB"))
        record = {"work": work, "by": runner, "date": str(date.today()), "peak_mb": int(peak.split()[1]) // 1024}
        record |= json.loads(found[-1])
        self.records.append(record)
        with self.lines.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{work} {runner}: {record['tok_per_cpu_s']['median']} tokens/CPU s, {record['peak_mb']} MB", flush=True)

    def run(self, name: str, work: Work) -> None:
        commands = {"ours": work.ours} | {peer: c for peer, c in work.peers.items() if self.python_of(peer)}
        for turn in range(self.args.runs):
            for runner, command in commands.items():
                if len(self.of(name, runner)) <= turn:
                    self.measure(name, runner, command)

    def of(self, work: str, runner: str) -> list[dict]:
        return [r for r in self.records if r["work"] == work and r["by"] == runner]

    def median(self, work: str, runner: str, value) -> float | None:
        found = [value(record) for record in self.of(work, runner)]
        return statistics.median(found) if found else None

    def table(self) -> str:
        speed = lambda record: record["tok_per_cpu_s"]["median"]
        heads = ("work", "ours", "peers, the best first", "ratio to the best", "must", "aim")
        heads = (*heads, "peak memory: ours, best peer, ratio")
        lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for name, work in works().items():
            ours = self.median(name, "ours", speed)
            theirs = {peer: self.median(name, peer, speed) for peer in work.peers if self.of(name, peer)}
            if ours is None or not theirs:
                continue
            best = max(theirs, key=theirs.get)
            every = ", ".join(f"{peer} {found:.0f}" for peer, found in sorted(theirs.items(), key=lambda one: -one[1]))
            beside = {peer: bars for peer, bars in work.beside.items() if peer in theirs}
            ratios = [f"**{ours / theirs[best]:.2f}x**", *(f"{ours / theirs[peer]:.2f}x {peer}" for peer in beside)]
            bars = [[f"{(work.must, work.aim)[n]}x", *(f"{own[n]}x" for own in beside.values())] for n in (0, 1)]
            cells = [name, f"{ours:.0f}", every, *map(", ".join, (ratios, *bars))]
            cells.append(self.memory(name, best, work.most_mb) if work.memory else "")
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def memory(self, name: str, peer: str, most_mb: tuple[int, int]) -> str:
        peak = lambda record: record["peak_mb"]
        ours, theirs = self.median(name, "ours", peak), self.median(name, peer, peak)
        bars = f" (must {most_mb[0]} MB, aim {most_mb[1]} MB)" if any(most_mb) else ""
        return f"{ours:.0f} MB, {theirs:.0f} MB, {ours / theirs:.2f}x{bars}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="folder of the harness, with MODELS/tiny and MODELS/slice")
    parser.add_argument("--out", required=True, help="folder for the JSON lines and the compilation cache")
    parser.add_argument("--only", nargs="*", choices=sorted(works()), default=list(works()))
    parser.add_argument("--runs", type=int, default=3, help="processes of each runner; they take turns")
    parser.add_argument("--core", type=int, default=1)
    parser.add_argument("--torch", default=str(HERE.parent / ".venv-parity" / "bin" / "python"))
    parser.add_argument("--tunix", default="", help="Python with google-tunix==0.1.7; empty to leave tunix out")
    args = parser.parse_args()
    args.bench = str(Path(args.bench).resolve())
    comparison = Comparison(args)
    for name in args.only:
        comparison.run(name, works()[name])
    print(comparison.table())


if __name__ == "__main__":
    main()
