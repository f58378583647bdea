"""Programs are counted as they are compiled or fetched: the numbers, not the times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from fr3e_jax.configuration import to_yaml
from fr3e_jax.loop.train import train
from fr3e_jax.runs import compilation
from fr3e_jax.runs.compilation import Compilations, compilations, count_compilations
from fr3e_jax.runs.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[2]


def test_a_program_is_counted_once_per_shape():
    count_compilations()
    count_compilations()
    program = jax.jit(lambda x: x * 3 + 1)
    three, four = np.ones(3, np.float32), np.ones(4, np.float32)
    start = compilations()
    program(three)
    first = compilations().since(start)
    assert first.programs == 1 and first.seconds > 0
    program(three)
    assert compilations().since(start) == first
    program(four)
    assert compilations().since(start).programs == 2


def test_nested_spans_count_their_seconds_once(monkeypatch):
    counter, now = compilation._Counter(), [0.0]
    monkeypatch.setattr(compilation.time, "perf_counter", lambda: now[0])
    trace, lower, compiled = compilation._PARTS
    for event, start, end in (
        (trace, 1.0, 2.0),  # of a function within
        (trace, 2.5, 3.0),  # of another
        (trace, 0.5, 4.0),  # of the one that calls them
        (lower, 4.0, 5.0),
        (compiled, 5.0, 8.0),
        (trace, 9.0, 9.5),
    ):
        now[0] = end
        counter.on_duration(event, end - start, fun_name="f")
    counter.on_duration("/jax/something/else", 100.0)
    counter.on_event("/jax/something/else")
    counter.on_event("/jax/compilation_cache/cache_hits")
    assert (counter.programs, counter.cache_hits, counter.seconds) == (1, 1, 3.5 + 1 + 3 + 0.5)


def test_differences_and_sums():
    before, now = Compilations(2, 1, 0.5), Compilations(5, 3, 2.0)
    assert now.since(before) == Compilations(3, 2, 1.5)
    assert before.plus(now.since(before)) == now


def test_the_second_step_compiles_nothing_new(tmp_path, tiny_run):
    """Every size of these steps is the same, and all that one step needs is there for the next."""
    settings = {
        "explore__train_base": True,
        "rollout__prompts_per_round": 8,
        "training__batch_rollouts": 200,
        "training__mini_batch_rollouts": 200,
        # On several shards, other slots become free together: the second step inserts another power of two of trunks.
        "training__max_steps": 2 if jax.device_count() == 1 else 3,
        "evaluation__every": 0,
        "checkpoint__every": 100,  # on several devices orbax compiles slices of its own, in a thread of its own
        "optimizer__learning_rate": 1.7e-3,  # no other test's, whose training programs it would share
    }
    assert train(tiny_run.config(**settings), tmp_path / "run") == 0
    first, *_, last = read_metrics(tmp_path / "run" / "metrics.jsonl", kind="train")
    assert first["compile/programs"] > 0 and first["compile/seconds"] > 0  # decoders may be those of other tests
    assert (last["compile/programs"], last["compile/cache_hits"], last["compile/seconds"]) == (0, 0, 0)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["compilations"]["programs"] >= first["compile/programs"]


@pytest.mark.slow
def test_a_second_process_compiles_nothing_with_a_warm_cache(tmp_path, tiny_run):
    found = []
    for name in ("cold", "warm"):
        config = tiny_run.config(
            runtime__compilation_cache=str(tmp_path / "cache"),
            runtime__run_dir=str(tmp_path / name),
            runtime__compile_ahead=False,  # a forecast may hold what the run does not need
            training__max_steps=1,
            training__batch_rollouts=10,
            evaluation__every=0,
        )
        (tmp_path / "recipe.yaml").write_text(to_yaml(config))
        command = [sys.executable, "-m", "fr3e_jax", "train", str(tmp_path / "recipe.yaml")]
        environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
        # Without optimizations, to compile less.
        environment |= {"PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
        found.append(json.loads((tmp_path / name / "summary.json").read_text())["compilations"])
    cold, warm = found
    assert cold["programs"] == warm["programs"] > 10
    assert cold["cache_hits"] <= 2  # equal programs of one process
    assert warm["cache_hits"] == warm["programs"]
