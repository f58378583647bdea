from __future__ import annotations

import contextlib
import json
import math
import resource

import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.runs.declared_metrics import STRICT
from fr3e_jax.runs.metrics import MetricsWriter, read_metrics, recorded_scores, without_timing
from fr3e_jax.runs.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def names_as_a_user_may_add(monkeypatch):
    monkeypatch.delenv(STRICT)


def train(run_dir: RunDirectory, first: int, last: int, resume_step: int | None, seconds: float) -> None:
    """Write as a training loop does: the record of each step, and an evaluation every second step."""
    writer = MetricsWriter(run_dir, resume_step=resume_step)
    for step in range(first, last + 1):
        metrics = {"reward/mean": math.sin(step), "seconds/update": seconds, "wall_seconds": seconds * step}
        writer.write(step, metrics)
        if step % 2 == 0:
            writer.write(step, {"avg@16": math.cos(step)}, kind="eval")


def test_resumed_file_equals_the_uninterrupted_one(tmp_path):
    whole, killed = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "killed")
    train(whole, 0, 9, None, seconds=1.0)
    train(killed, 0, 7, None, seconds=1.0)
    train(killed, 5, 9, 4, seconds=3.0)
    found, expected = read_metrics(killed.metrics), read_metrics(whole.metrics)
    assert [without_timing(record) for record in found] == [without_timing(record) for record in expected]
    assert found != expected
    assert len(found) == 15


def test_without_timing_keeps_everything_else():
    record = {"step": 1, "seconds/a": 1, "speed/b": 2, "cpu_seconds": 3, "wall_seconds": 4, "compile/programs": 6}
    record |= {"tokens/seconds": 5}
    assert without_timing(record) == {"step": 1, "tokens/seconds": 5}


def test_torn_last_line_is_dropped_on_resume_and_ignored_by_the_reader(tmp_path):
    run_dir = RunDirectory(tmp_path)
    train(run_dir, 1, 3, None, seconds=1.0)
    complete = run_dir.metrics.read_bytes()
    run_dir.metrics.write_bytes(complete + b'{"step": 4, "kind": "train", "reward/me')
    assert [record["step"] for record in read_metrics(run_dir.metrics, kind="train")] == [1, 2, 3]
    MetricsWriter(run_dir, resume_step=9)
    assert run_dir.metrics.read_bytes() == complete


def test_run_without_a_checkpoint_starts_its_file_again(tmp_path):
    run_dir = RunDirectory(tmp_path)
    train(run_dir, 0, 3, None, seconds=1.0)
    train(run_dir, 0, 1, None, seconds=1.0)
    assert [record["step"] for record in read_metrics(run_dir.metrics)] == [0, 0, 1]


@contextlib.contextmanager
def largest_file(size: int):
    """A block in which a file of more bytes cannot be written, as on a full disk: part of a line may go in."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def test_a_line_for_which_there_is_no_room_leaves_the_file_whole(tmp_path):
    run_dir = RunDirectory(tmp_path)
    writer = MetricsWriter(run_dir, resume_step=None)
    writer.write(1, {"reward/mean": 0.5})
    complete = run_dir.metrics.read_bytes()
    with largest_file(len(complete) + 5):
        with pytest.raises(OSError):
            writer.write(2, {"reward/mean": 0.5})
    assert run_dir.metrics.read_bytes() == complete


def test_line_is_readable_as_soon_as_it_is_written(tmp_path):
    writer = MetricsWriter(RunDirectory(tmp_path), resume_step=None)
    writer.write(1, {"loss": 0.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "kind": "train", "loss": 0.5}]


def test_scalars_of_any_kind_keep_all_their_digits(tmp_path):
    values = {"a": 0.1 + 0.2, "b": np.float32(0.1), "c": jnp.float32(1e-7), "d": np.int64(7), "e": 2**60, "f": True}
    writer = MetricsWriter(RunDirectory(tmp_path), resume_step=None)
    writer.write(1, values)
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    assert [record[key] for key in "abcdef"] == [
        0.1 + 0.2, float(np.float32(0.1)), float(np.float32(1e-7)), 7, 2**60, 1,
    ]  # fmt: skip
    assert isinstance(record["d"], int)


def test_nonfinite_numbers_are_valid_json_and_come_back(tmp_path):
    writer = MetricsWriter(RunDirectory(tmp_path), resume_step=None)
    writer.write(3, {"loss": float("nan"), "ratio": float("-inf"), "reward": 1.0})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 3, "kind": "train",
        "loss": None, "loss/nonfinite": "nan", "ratio": None, "ratio/nonfinite": "-inf", "reward": 1.0,
    }  # fmt: skip
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(record.pop("loss"))
    assert record == {"step": 3, "kind": "train", "ratio": -math.inf, "reward": 1.0}


def test_bad_metrics_are_named_and_nothing_is_written(tmp_path):
    writer = MetricsWriter(RunDirectory(tmp_path), resume_step=None)
    with pytest.raises(TypeError, match=r"metric 'reward' is 'high' \(str\); expected a scalar"):
        writer.write(1, {"loss": 1.0, "reward": "high"})
    with pytest.raises(TypeError, match="metric 'reward' is array"):
        writer.write(1, {"reward": np.ones(2)})
    with pytest.raises(ValueError, match="metric named 'kind'"):
        writer.write(1, {"kind": 1.0})
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected the metrics.jsonl of a run directory"):
        read_metrics(tmp_path / "none.jsonl")


def test_scores_are_the_finite_values_of_evaluations(tmp_path):
    writer = MetricsWriter(RunDirectory(tmp_path), resume_step=None)
    writer.write(1, {"avg@16": 0.9})  # no evaluation
    for step, score in ((1, 0.25), (2, float("nan")), (3, 0.5)):
        writer.write(step, {"avg@16": score, "greedy": 1.0}, kind="eval")
    path = tmp_path / "metrics.jsonl"
    damaged = b'{"kind": "eval"}\n[1, {"kind": "eval"}]\n\xff"kind": "eval"\n{"step": 4, "ki'
    path.write_bytes(path.read_bytes() + damaged)
    assert recorded_scores(path, "avg@16") == {1: 0.25, 3: 0.5}
    assert recorded_scores(tmp_path / "none.jsonl", "avg@16") == {}


def test_a_file_that_another_program_deletes_has_the_later_records(tmp_path):
    writer = MetricsWriter(RunDirectory(tmp_path), resume_step=None)
    writer.write(1, {"reward/mean": 0.5})
    (tmp_path / "metrics.jsonl").unlink()
    writer.write(2, {"reward/mean": 0.6})
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [2]
