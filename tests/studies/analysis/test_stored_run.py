"""A run read from disk for analysis."""

import pytest
from analysed_runs import rollout

from fr3e_jax.configuration import Config, ConfigError, save_config
from fr3e_jax.runs.metrics import MetricsWriter
from fr3e_jax.runs.rollout_store import write_rollouts
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.studies.analysis.stored_run import StoredRun


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "first")
    save_config(Config(name="small"), directory.path, platform="cpu", device_kind="cpu")
    metrics = MetricsWriter(directory, resume_step=None)
    metrics.write(0, {"greedy": 0.25}, kind="eval")
    metrics.write(1, {"reward/mean": 0.5})
    write_rollouts(directory, 1, [rollout(1, 0, 0, 1, [6, 1]), rollout(1, 0, 1, 1, [6, 1])])
    write_rollouts(directory, 0, [rollout(0, 0, 0, 1, [6, 1], kind="eval", benchmark="order")], stem="eval")
    (directory.rollouts / ".step_000002.jsonl.gz.tmp").write_bytes(b"half")
    return StoredRun.open(directory.path)


def test_settings_metrics_rollouts_and_samples_are_read(run):
    assert run.name == "first" and run.settings["name"] == "small" and run.settings["evaluation.pass_at"] == [8, 16]
    assert [r["reward/mean"] for r in run.training] == [0.5] and [r["greedy"] for r in run.evaluations] == [0.25]
    assert (run.steps(), run.steps("eval")) == ([1], [0])
    assert [record.id for record in run.rollouts(1)] == ["1/0/0", "1/0/1"]
    assert [record.benchmark for record in run.rollouts(0, "eval")] == ["order"]
    assert run.provenance["verb"] == "train" and run.summary is None
    assert run.codec.decode([2]) == "0"


def test_a_missing_run_and_damaged_files_are_named(run, tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        StoredRun.open(tmp_path / "absent")
    path = run.directory.rollouts / "step_000001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"step_000001.jsonl.gz"):
        list(run.rollouts(1))
    run.directory.config.write_text("a: [1")
    with pytest.raises(ConfigError, match=r"config.yaml cannot be read"):
        StoredRun.open(run.directory.path).settings  # noqa: B018
