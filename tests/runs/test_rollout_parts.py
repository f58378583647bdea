"""Rollouts that several processes have written: parts which every reader joins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fr3e_jax.runs.rollout_parts import Part, rollout_path, stored_bytes, stored_steps
from fr3e_jax.runs.rollout_store import RolloutRecord, drop_after, read_rollouts, write_rollouts
from fr3e_jax.runs.run_directory import RunDirectory

ONE = RolloutRecord(
    id="0", step=7, kind="base", prompt_position=0, problem_id="p", prompt_ids=[5], token_ids=[6, 1],
    logprobs=[-0.5, -0.25], entropies=[1.0, 0.5], reward=1.0, finished=True, base=0,
)  # fmt: skip
RECORDS = [replace(ONE, id=str(number)) for number in range(5)]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 9))
@example([1, 0], 1)
@example([0, 0], 3)
def test_parts_hold_each_record_once_in_order_and_differ_by_a_record_at_most(sizes, count):
    parts = [list(Part(index, count).of(sizes)) for index in range(count)]
    assert [n for part in parts for n in part] == list(range(len(sizes)))
    share = sum(sizes) / count
    for part in parts:
        assert sum(sizes[n] for n in part) <= share + max(sizes, default=0)


def written(run, count, records=RECORDS, stem="step", step=7):
    for index in reversed(range(count)):
        part = Part(index, count)
        own = [records[n] for n in part.of([2] * len(records))]
        write_rollouts(run, step, own, stem=stem, part=part)
    return rollout_path(run, step, stem=stem)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_parts_read_as_one_file(tmp_path, count):
    run = RunDirectory(tmp_path)
    path = written(run, count)
    files = sorted(file for file in run.rollouts.rglob("*.gz"))
    assert len(files) == count and len(list(run.rollouts.iterdir())) == 1, "a step takes one entry"
    assert read_rollouts(path) == RECORDS
    assert (stored_steps(run), stored_steps(run, "eval")) == ([7], [])
    assert stored_bytes(path) == sum(file.stat().st_size for file in files)


def test_a_missing_part_is_named_and_its_step_not_listed(tmp_path):
    run = RunDirectory(tmp_path)
    path = written(run, 3)
    lost = run.rollouts / "step_000007" / "step_000007.1-of-3.jsonl.gz"
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=r"is in 3 parts, and step_000007\.1-of-3\.jsonl\.gz is missing"):
        read_rollouts(path)
    assert stored_steps(run) == [] and stored_bytes(path) == 0
    with pytest.raises(FileNotFoundError, match=r"step_000008\.jsonl\.gz is not there, and no part of it"):
        read_rollouts(rollout_path(run, 8))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_a_step_written_again_by_another_number_of_processes_replaces_the_first(tmp_path, before, after):
    run = RunDirectory(tmp_path)
    written(run, before)
    path = written(run, after, [replace(one, reward=0.0) for one in RECORDS])
    assert [one.reward for one in read_rollouts(path)] == [0.0] * 5
    assert len(list(run.rollouts.rglob("*.gz"))) == after and len(list(run.rollouts.iterdir())) == 1


def test_parts_of_later_steps_and_interrupted_ones_are_dropped(tmp_path):
    run = RunDirectory(tmp_path)
    written(run, 2)
    written(run, 2, [replace(one, step=8) for one in RECORDS], step=8)
    (run.rollouts / "step_000007" / ".step_000007.0-of-2.jsonl.gz.tmp").write_bytes(b"half")
    drop_after(run, 7)
    names = sorted(path.name for path in run.rollouts.rglob("*"))
    assert names == ["step_000007", "step_000007.0-of-2.jsonl.gz", "step_000007.1-of-2.jsonl.gz"]


def test_a_damaged_part_is_named(tmp_path):
    path = written(RunDirectory(tmp_path), 2)
    second = path.with_name("step_000007") / "step_000007.1-of-2.jsonl.gz"
    second.write_bytes(second.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"step_000007\.1-of-2\.jsonl\.gz: .*expected gzipped JSON lines"):
        read_rollouts(path)
