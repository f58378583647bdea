"""Evaluations as Inspect reads them: the layout, and what Inspect itself makes of the files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.verbs.evaluation_files import write_evaluation
from fr3e_jax.verbs.evaluations import Result

METRICS = {"a/avg@2": 0.75, "a/greedy": 0.5, "b/avg@2": 0.5, "b/greedy": 0.0, "avg@2": 0.625, "prompts": 3.0}
REWARDS = {("a", 0): [1, 1, 1], ("a", 1): [0, 0, 1], ("b", 2): [0, 1, math.nan]}


def record(benchmark, position, sample, reward):
    ids = np.array([1, 2])
    return RolloutRecord(
        f"eval/3/{position}/{sample}", 3, "eval", position, f"{benchmark}/test/{position}", [5], ids, ids, ids,
        float(reward), sample < 2, sample, "right" if reward == 1 else None, benchmark=benchmark, kept=False,
        prompt=f"{position} plus 1?", response=f"answer {sample}", gold=str(position + 1),
    )  # fmt: skip


@pytest.fixture
def result(tmp_path) -> Result:
    """An evaluation of two sets, of which an answer was cut and not graded."""
    folder = RunDirectory(tmp_path / "step_000003-0123")
    folder.path.mkdir()
    records = [
        record(*key, sample, reward) for key, rewards in REWARDS.items() for sample, reward in enumerate(rewards)
    ]
    rollout_store.write_rollouts(folder, 3, records, stem="eval")
    described = {"step": 3, "settings": {"seed": 7, "data": {"eval": ["a", "b"], "task": "datasets"}}}
    (folder.path / "metrics.json").write_text(json.dumps({"of": described, "metrics": METRICS}))
    return Result("my/run step 3", METRICS, "avg", str(folder.path))


def test_logs_have_the_layout_of_inspect(result):
    logs = [json.loads(path.read_text()) for path in sorted(write_evaluation(result).iterdir())]
    assert [log["eval"]["task"] for log in logs] == ["a", "a_greedy", "b", "b_greedy"]
    assert {log["status"] for log in logs} == {"success"} and {log["version"] for log in logs} == {2}
    required = {"created", "task", "dataset", "model", "config"}
    assert all(required <= log["eval"].keys() for log in logs)
    (score,) = logs[0]["results"]["scores"]
    assert score["metrics"] == {"avg@2": {"name": "avg@2", "value": 0.75}} and logs[0]["eval"]["config"]["epochs"] == 2
    assert [(sample["id"], sample["epoch"]) for sample in logs[0]["samples"]][:2] == [("a/test/0", 1), ("a/test/0", 2)]
    ungraded = logs[2]["samples"][1]
    assert ungraded["scores"]["verifier"] == {"value": "N", "explanation": "not graded"}
    assert ungraded["output"]["choices"][0]["stop_reason"] == "max_tokens"


def test_an_evaluation_without_responses_says_so(result):
    next((Path(result.folder) / "rollouts").iterdir()).unlink()
    with pytest.raises(ConfigError, match="has no responses, which --format writes; remove it, and set runtime.store_"):
        write_evaluation(result)


def test_inspect_reads_the_logs(result):
    log_module = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed; its layout is tested above")
    log = log_module.read_eval_log(str(sorted(write_evaluation(result).iterdir())[0]))
    assert log.status == "success" and log.results.scores[0].metrics["avg@2"].value == 0.75
    assert log.samples[0].output.completion == "answer 1" and log.samples[0].scores["verifier"].value == 1
