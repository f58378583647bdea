from __future__ import annotations

import gzip
import json
import math
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from fr3e_jax.runs.rollout_parts import rollout_path
from fr3e_jax.runs.rollout_store import RolloutRecord, drop_after, read_rollouts, write_rollouts
from fr3e_jax.runs.run_directory import RunDirectory


def single(value: float) -> float:
    return float(str(np.float32(value)))


BASE = RolloutRecord(
    id="12/3/b0", step=12, kind="base", prompt_position=3, problem_id="order-3", prompt_ids=[5, 6],
    token_ids=[7, 8, 9], logprobs=[single(-0.1), -1.5, single(-1e-7)], entropies=[single(0.3), 1.25, 0.0],
    reward=1.0, finished=True, base=0, anchors=[1, 0], value=0.25,
)  # fmt: skip
CHILD = RolloutRecord(
    id="12/3/b0/s1/m0", step=12, kind="state", prompt_position=3, problem_id="order-3", prompt_ids=[5, 6],
    token_ids=[4], logprobs=[-2.0], entropies=[single(0.7)], reward=0.0, finished=False, base=0, state=1, branch=0,
    parent="12/3/b0", fork=1, kept=False, advantage=-0.5, value=0.5, alpha=single(math.exp(-0.25)),
)  # fmt: skip


def test_records_come_back_equal_and_in_order(tmp_path):
    path = write_rollouts(RunDirectory(tmp_path), 12, [CHILD, BASE])
    assert path == tmp_path / "rollouts" / "step_000012.jsonl.gz"
    assert read_rollouts(path) == [CHILD, BASE]


def test_floats_are_the_shortest_that_give_the_same_float32(tmp_path):
    values = np.random.default_rng(0).normal(size=200).astype(np.float32) * np.float32(1e-3)
    record = replace(BASE, token_ids=[1] * 200, logprobs=values.tolist(), entropies=(-values).tolist())
    path = write_rollouts(RunDirectory(tmp_path), 12, [record])
    (found,) = read_rollouts(path)
    np.testing.assert_array_equal(np.asarray(found.logprobs, np.float32), values)
    assert max(len(str(value)) for value in found.logprobs) <= 16 < max(len(str(value)) for value in values.tolist())


def test_equal_records_give_equal_bytes(tmp_path):
    paths = [write_rollouts(RunDirectory(tmp_path / name), 12, [BASE, CHILD]) for name in ("a", "b")]
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first[4:8] == b"\0\0\0\0", "the gzip header holds a time"


def test_a_file_of_several_blocks_is_the_same_from_any_number_of_threads(tmp_path, monkeypatch):
    records = [replace(BASE, id=str(number), response="x" * 50_000) for number in range(100)]
    contents = []
    for threads in (1, 2, 8):
        monkeypatch.setattr("os.cpu_count", lambda threads=threads: threads)
        path = write_rollouts(RunDirectory(tmp_path / str(threads)), 12, records)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1] == contents[2]
    assert read_rollouts(path) == records
    assert subprocess.run(["gzip", "-dc", path], capture_output=True).stdout.count(b"\n") == 100


def test_array_scalars_and_nonfinite_floats_are_stored_as_json(tmp_path):
    odd = replace(
        BASE, token_ids=list(np.array([7, 8, 9])), logprobs=[math.nan, -math.inf, 0.0], reward=math.nan,
        finished=np.bool_(True), prompt_position=np.int32(3),
    )  # fmt: skip
    path = write_rollouts(RunDirectory(tmp_path), 12, [odd])
    line = json.loads(gzip.decompress(path.read_bytes()), parse_constant=pytest.fail)
    assert (line["token_ids"], line["logprobs"], line["reward"]) == ([7, 8, 9], [None, None, 0.0], None)
    assert (line["finished"], line["prompt_position"]) == (True, 3)
    (found,) = read_rollouts(path)
    assert [math.isnan(value) for value in (*found.logprobs, found.reward)] == [True, True, False, True]


def test_failed_write_leaves_the_file_of_before(tmp_path):
    run_dir = RunDirectory(tmp_path)
    path = write_rollouts(run_dir, 12, [BASE])
    with pytest.raises(ValueError, match="12/3/b0 has step 13, expected 12 .file step_000012"):
        write_rollouts(run_dir, 12, [CHILD, replace(BASE, step=13)])
    assert read_rollouts(path) == [BASE]
    assert [file.name for file in run_dir.rollouts.iterdir()] == [path.name]


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="rollout x: found lengths .*'token_ids': 2, 'logprobs': 3"):
        replace(BASE, id="x", token_ids=[1, 2])


def test_drop_after_removes_later_steps_and_interrupted_writes_only(tmp_path):
    run_dir = RunDirectory(tmp_path)
    assert drop_after(run_dir, 3) == []
    for step in (2, 3, 4, 1_000_000):
        write_rollouts(run_dir, step, [replace(BASE, step=step)])
    write_rollouts(run_dir, 3, [replace(BASE, step=3)], stem="eval")
    write_rollouts(run_dir, 4, [replace(BASE, step=4)], stem="eval")
    (run_dir.rollouts / ".step_000003.jsonl.gz.tmp").write_bytes(b"half")
    (run_dir.rollouts / "notes.md").write_text("mine")
    removed = drop_after(run_dir, 3)
    assert sorted(path.name for path in removed) == [
        ".step_000003.jsonl.gz.tmp", "eval_000004.jsonl.gz", "step_000004.jsonl.gz", "step_1000000.jsonl.gz",
    ]  # fmt: skip
    left = sorted(path.name for path in run_dir.rollouts.iterdir())
    assert left == ["eval_000003.jsonl.gz", "notes.md", "step_000002.jsonl.gz", "step_000003.jsonl.gz"]
    drop_after(run_dir, None)
    assert [path.name for path in run_dir.rollouts.iterdir()] == ["notes.md"]


def test_damaged_and_foreign_files_are_named(tmp_path):
    path = write_rollouts(RunDirectory(tmp_path), 12, [BASE, CHILD])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="step_000012.jsonl.gz: .*expected gzipped JSON lines"):
        read_rollouts(path)
    path.write_bytes(gzip.compress(b'{"step": 1}\n'))
    with pytest.raises(ValueError, match="step_000012.jsonl.gz, line 1, field id: Field required"):
        read_rollouts(path)
    assert rollout_path(RunDirectory(tmp_path), 12) == path
