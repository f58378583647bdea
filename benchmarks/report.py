"""Time and memory of the page of a large made-up run: ``python benchmarks/report.py [DIRECTORY]``.

The run has 500 steps of 1,024 rollouts of 2,000 tokens: 16 prompts a step, each with 16 base rollouts and 48 rollouts
from 4 states of 3 of them. Few distinct steps are drawn; the other files are copies of them under their own steps.
Four evaluations have 100 problems of 5 samples. The report is made in a process of its own, whose peak memory is
printed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from isal import igzip

from fr3e_jax.configuration import Config, save_config
from fr3e_jax.runs.metrics import MetricsWriter
from fr3e_jax.runs.rollout_parts import rollout_path
from fr3e_jax.runs.rollout_store import RolloutRecord, write_rollouts
from fr3e_jax.runs.run_directory import RunDirectory

PROMPTS, BASES, EXPLORED, STATES, BRANCHES = 16, 16, 3, 4, 4
VOCABULARY = 22  # of the embedded tokenizer


def record(rng: np.random.Generator, step: int, position: int, length: int, **fields) -> RolloutRecord:
    """A rollout with random tokens and numbers; most tokens are nearly certain, as a language model's are."""
    reward = float(rng.random() < 0.4)
    entropies = rng.exponential(0.3, length) * (rng.random(length) < 0.3)
    return RolloutRecord(
        step=step,
        prompt_position=position,
        problem_id=f"train/{position}",
        prompt_ids=rng.integers(2, VOCABULARY, 120).tolist(),
        token_ids=rng.integers(2, VOCABULARY, length).tolist(),
        logprobs=-rng.exponential(1, length) * entropies,
        entropies=entropies,
        reward=reward,
        outcome="right" if reward else "wrong",
        finished=True,
        **fields,
    )


def step_records(rng: np.random.Generator, step: int, tokens: int) -> Iterator[RolloutRecord]:
    for position in range(PROMPTS * step, PROMPTS * (step + 1)):
        for base in range(BASES):
            parent = f"{step}/{position}/{base}"
            anchors = sorted(rng.choice(tokens, STATES, replace=False).tolist()) if base < EXPLORED else []
            yield record(rng, step, position, tokens, id=parent, kind="base", base=base, anchors=anchors, value=0.4)
            for state, fork in enumerate(anchors, 1):
                for branch in range(BRANCHES):
                    fields = {"state": state, "branch": branch, "parent": parent, "fork": fork, "base": base}
                    fields |= {"value": float(rng.random()), "alpha": 1.0, "advantage": float(rng.normal())}
                    yield record(rng, step, position, tokens, id=f"{parent}/{state}/{branch}", kind="state", **fields)


def write_run(path: Path, steps: int, distinct: int, tokens: int) -> None:
    directory, rng = RunDirectory(path), np.random.default_rng(0)
    save_config(Config(name="large"), path, platform="cpu", device_kind="cpu")
    for step in range(1, steps + 1):
        if step <= distinct:
            write_rollouts(directory, step, step_records(rng, step, tokens))
        else:
            drawn = 1 + step % distinct
            lines = igzip.decompress(rollout_path(directory, drawn).read_bytes())
            lines = lines.replace(b'"step":%d,' % drawn, b'"step":%d,' % step)
            rollout_path(directory, step).write_bytes(igzip.compress(lines, 1))
    evaluations = range(0, steps + 1, max(1, steps // 3))
    for step in evaluations:
        samples = [
            record(rng, step, n, tokens, id=f"eval/{step}/{n}/{m}", kind="eval", base=m)
            for n in range(100)
            for m in range(5)
        ]
        write_rollouts(directory, step, samples, stem="eval")
    metrics = MetricsWriter(directory, resume_step=None)
    for step in range(1, steps + 1):
        metrics.write(step, {f"group/{n}": float(rng.normal()) for n in range(90)})
    for step in evaluations:
        metrics.write(step, {"greedy": float(rng.random())}, kind="eval")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", help="where to keep the run (default: a temporary directory)")
    for name, default in (("--steps", 500), ("--distinct", 4), ("--tokens", 2000)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(options.directory or Path(temporary) / "large")
        if not path.exists():
            start = time.perf_counter()
            write_run(path, options.steps, options.distinct, options.tokens)
            print(f"written in {time.perf_counter() - start:.0f} s", flush=True)
        stored = sum(file.stat().st_size for file in (path / "rollouts").iterdir())
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fr3e_jax", "report", str(path)], check=True)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6  # kilobytes on Linux
        size = (path / "report.html").stat().st_size / 1e6
        print(f"{stored / 1e9:.1f} GB of rollouts: {seconds:.0f} s, peak {peak:.2f} GB, page {size:.1f} MB")


if __name__ == "__main__":
    main()
