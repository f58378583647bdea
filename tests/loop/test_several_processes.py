"""Two and four processes on one machine do the same as one, stop together, and continue as any other number."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from object_store import BUCKET, unclosed
from process_group import HEARTBEAT, Group, assert_same_records, saved_steps
from run_process import wait_until

from fr3e_jax.api import stored as api
from fr3e_jax.configuration import ConfigError
from fr3e_jax.loop.train import train
from fr3e_jax.runs.metrics import read_metrics, without_timing
from fr3e_jax.runs.rollout_parts import rollout_path, stored_steps
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.stores.mirror import MirroredRun
from fr3e_jax.stores.objects import Store
from fr3e_jax.stores.reading import run_folder

# What depends on the number of shards: rows and slots are multiples of it.
# A trunk whose branches lie in two rows passes the network in both, and rows depend on the number of shards.
SHARDED = ("packing/useful_share", "tokens/padded_positions", "tokens/trained_positions", "tokens/lane_steps")


def assert_like(found: Path, wanted: Path, steps: int | None = None) -> None:
    """The same rewards, tokens and choices in the first steps, metrics to 1e-5, after updates to 1e-4.

    Gradient norms after updates to 1e-3: Adam divides each weight's gradient by its size. Rounding is 1e-7 at first and
    grows by about ten with each step (1e-5, 6e-5, 1.4e-4 with four processes).
    """
    records, wanted_records = (
        [without_timing(r) for r in read_metrics(path / "metrics.jsonl") if steps is None or r["step"] <= steps]
        for path in (found, wanted)
    )
    if steps is not None:  # a run evaluates its last step; a longer run perhaps not that step
        records, wanted_records = (
            [r for r in rows if r["kind"] == "train" or not r["step"]] for rows in (records, wanted_records)
        )
    assert [(r["step"], r["kind"]) for r in records] == [(r["step"], r["kind"]) for r in wanted_records]
    for record, expected in zip(records, wanted_records, strict=True):
        assert record.keys() == expected.keys()
        for name in record.keys() - set(SHARDED) - {"kind"}:
            where = f"{name} of step {record['step']}"
            close = 1e-5 if record["step"] <= 1 else 1e-3 if name.startswith("gradient_norm/") else 1e-4
            np.testing.assert_allclose(record[name], expected[name], rtol=close, atol=1e-5, err_msg=where)
    for number, step in enumerate(stored_steps(RunDirectory(wanted))[:steps]):
        # Adam's first updates turn a rounding error of a gradient into a full step: later weights agree less.
        tolerance = 1e-4 if number else 1e-5
        paths = (rollout_path(RunDirectory(path), step) for path in (found, wanted))
        pairs = zip(*map(read_rollouts, paths), strict=True)
        for rollout, expected in pairs:
            for name in ("id", "token_ids", "reward", "outcome", "anchors", "kept", "finished", "fork"):
                assert getattr(rollout, name) == getattr(expected, name), f"{name} of rollout {expected.id}"
            np.testing.assert_allclose(rollout.logprobs, expected.logprobs, rtol=tolerance, atol=tolerance)


IN_AN_ENVIRONMENT = {
    "explore__enabled": False,
    "training__surplus": "drop",
    "training__max_steps": 1,
    "rollout__reject_degenerate": False,
    "rollout__max_response_tokens": 16,
    "environment__kind": f"{Path(__file__).parents[1] / 'fixtures' / 'scripted_environment.py'}:Logged",
    "environment__turn_end": "5",
    "environment__observation": "({observation}3=",
    "environment__max_turns": 3,
    "environment__max_observation_tokens": 3,
}


def played(folder: Path, least_seed: int = 2) -> list[Counter]:
    """How often each process has reset, stepped and closed each episode; those before a run have the seeds 0 and 1."""
    lines = [file.read_text().splitlines() for file in folder.iterdir()]
    return [Counter(line for line in own if int(line.split()[-1]) >= least_seed) for own in lines]


@pytest.mark.slow
def test_each_of_two_processes_plays_its_own_episodes_and_a_stop_closes_them(tmp_path, tiny_run, monkeypatch):
    """Without branches each rollout has a seed of its own, so an episode that two processes play would show."""
    folders = [tmp_path / name for name in ("alone", "stopped", "resumed")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setenv("FR3E_TEST_PLAYED", str(folders[0]))
    assert train(tiny_run.config(**IN_AN_ENVIRONMENT), tmp_path / "run_alone") == 0
    group = Group(tmp_path, tiny_run, **IN_AN_ENVIRONMENT)
    monkeypatch.setenv("FR3E_TEST_PLAYED", str(folders[1]))
    assert group.run(2, environments={1: {"FR3E_TEST_STOP": "SIGTERM first_return 2"}}) == [0, 0], group.logs()
    assert "SIGTERM: step 1 is given up" in group.log(0)
    monkeypatch.setenv("FR3E_TEST_PLAYED", str(folders[2]))
    assert group.run(2, "--resume") == [0, 0], group.logs()
    assert_like(group.run_dir, tmp_path / "run_alone")

    (alone,), stopped, resumed = map(played, folders)
    episodes = lambda counted: {line.partition(" ")[2] for line in counted}
    for both in (stopped, resumed):
        assert len(both) == 2 and not both[0].keys() & both[1].keys(), "an episode is played by one process"
    assert sum(resumed, Counter()) == alone
    assert episodes(sum(stopped, Counter())), "the stop came within episodes"
    for process in stopped:
        assert all(process[f"{what} {name}"] == 1 for name in episodes(process) for what in ("reset", "close"))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, tiny_run) -> Path:
    """A run of four steps by two processes that nothing interrupted."""
    group = Group(tmp_path_factory.mktemp("two"), tiny_run)
    assert group.run(2) == [0, 0], group.logs()
    assert "step 1/4" in group.log(0) and "step 1/4" not in group.log(1), "process 0 alone shows the run"
    return group.run_dir


@pytest.mark.slow
def test_a_whole_run_of_two_processes_equals_that_of_one(two_processes, finished_run):
    assert_like(two_processes, finished_run)
    assert json.loads((two_processes / "summary.json").read_text())["steps"] == 4
    parts = [two_processes / "rollouts" / "step_000001" / f"step_000001.{index}-of-2.jsonl.gz" for index in range(2)]
    lengths = [[len(rollout.token_ids) for rollout in read_rollouts(part)] for part in parts]
    assert abs(sum(lengths[0]) - sum(lengths[1])) <= 2 * max(map(max, lengths)), "each process stores half of them"


@pytest.mark.slow
def test_a_run_of_one_process_continues_on_four(tmp_path, tiny_run, finished_run):
    """Two replicas, each of which adds up the gradients of its own two processes."""
    group = Group(tmp_path, tiny_run)
    assert train(tiny_run.config(training__max_steps=2), group.run_dir) == 0
    assert group.run(4, "--resume", "training.max_steps=4", "mesh.replica=2") == [0] * 4, group.logs()
    assert_like(group.run_dir, finished_run)


@pytest.mark.slow
def test_two_processes_told_to_stop_again_and_again_end_equal(tmp_path, tiny_run, two_processes, finished_run):
    """The signal comes to the second process alone; both stop at the same chunk, or after the same step.

    A copy of the run continues on one process.
    """
    group, said = Group(tmp_path, tiny_run), "is saved; continue with fr3e train"
    stopped = lambda moment, *arguments: group.run(
        2, *arguments, environments={1: {"FR3E_TEST_STOP": f"SIGTERM {moment}"}}
    )
    assert stopped("evaluate 2") == [0, 0], group.logs()
    assert "SIGTERM: nothing was to be saved; continue with" in group.log(0), group.logs()
    assert stopped("explore 22", "--resume") == [0, 0], group.logs()
    assert group.log(0).count(said) == 1, group.logs()
    alone = shutil.copytree(group.run_dir, tmp_path / "alone")
    assert stopped("update 1", "--resume") == [0, 0], group.logs()
    assert group.log(0).count(said) == 2, group.logs()
    assert group.run(2, "--resume") == [0, 0], group.logs()
    assert_same_records(group.run_dir, two_processes)
    assert train(tiny_run.config(), alone, resume=True) == 0
    assert_like(alone, finished_run)


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_they_say_how_to_continue(tmp_path, tiny_run, two_processes):
    group = Group(tmp_path, tiny_run)
    for victim, verdict, arguments in [(0, 45, []), (1, 15, ["--resume"])]:
        for log in tmp_path.glob("log.*"):
            log.unlink()
        signals = {victim: {"FR3E_TEST_SIGNAL": f"SIGKILL {verdict}"}}
        with group.started(2, *arguments, environments=signals) as processes:
            assert processes[victim].wait(timeout=300) == -signal.SIGKILL, group.logs()
            start = time.monotonic()
            assert processes[1 - victim].wait(timeout=4 * HEARTBEAT) != 0, group.logs()
            waited = time.monotonic() - start
        assert waited < 3 * HEARTBEAT
        assert saved_steps(group), "this case is to be killed after a checkpoint"
        for index in range(2):  # a companion process speaks for the killed one
            words = f"process {index} of 2 was ended"
            assert words in group.last_log(index, words), group.logs()
            assert "continue from the last checkpoint with fr3e train" in group.log(index), group.logs()
    assert group.run(2, "--resume") == [0, 0], group.logs()
    assert_same_records(group.run_dir, two_processes)


@unclosed
@pytest.mark.slow
def test_two_processes_in_a_store_killed_in_the_upload_of_a_part_end_equal(tmp_path, tiny_run, two_processes, bucket):
    """Killed when the first part of step 2 is in the store, and not the second; then on another machine."""
    address = f"{BUCKET}/run"
    group, store = Group(tmp_path, tiny_run, runtime__run_dir=address), Store(address)
    first, second = (f"rollouts/step_000002/step_000002.{index}-of-2.jsonl.gz" for index in range(2))
    bucket.hold_upload(second)
    with group.started(2, "--continue") as processes:
        wait_until(bucket.is_held.is_set, processes[0])
        for process in processes:
            process.kill()
    bucket.release()
    assert store.below(first) and not store.below(second)
    ids = lambda run, **chosen: api.read_rollouts(run, **chosen)["id"]
    assert ids(address) == ids(two_processes, steps=[1])
    with pytest.raises(ConfigError, match="has no rollouts of steps .2.; it has those of .1."):
        ids(address, steps=[2])

    os.environ["FR3E_STORE_CACHE"] = str(tmp_path / "machine_1")
    assert group.run(2, "--continue") == [0, 0], group.logs()
    os.environ["FR3E_STORE_CACHE"] = str(tmp_path / "machine_2")
    assert_same_records(run_folder(address), two_processes)
    assert MirroredRun.read(store).checkpoints() == {"checkpoints/3/", "checkpoints/4/"}


@pytest.mark.slow
def test_different_prompts_on_one_process_stop_all_with_both_values(tmp_path, tiny_run):
    group = Group(tmp_path, tiny_run, data__task=f"{tiny_run.task}:Diverging")
    codes = group.run(2, environments={1: {"FR3E_TEST_DIVERGE": "1"}})
    assert codes == [1, 1], group.logs()
    for index in range(2):
        assert "stopped at step 1: the processes differ at step 1, prompts in 'prompt_ids'" in group.log(index)
        assert "  process 0: " in group.log(index) and "  process 1: " in group.log(index)


@pytest.mark.slow
def test_a_fault_of_one_process_ends_all(tmp_path, tiny_run):
    """Its task raises at once, where the others do not exchange anything with it."""
    group = Group(tmp_path, tiny_run, data__task=f"{tiny_run.task}:Unloadable")
    codes = group.run(2, environments={1: {"FR3E_TEST_UNLOADABLE": "1"}})
    assert codes[1] == 2 and codes[0] != 0, group.logs()
    assert "fr3e: error: there is no file of problems here" in group.log(1)


@pytest.mark.slow
def test_a_process_that_cannot_join_the_others_says_so(tmp_path, tiny_run):
    group = Group(tmp_path, tiny_run, runtime__heartbeat_seconds=5)
    with group.started(2) as processes:
        processes[1].kill()
        assert processes[0].wait(timeout=120) != 0
    assert "could not join" in group.last_log(0, "could not join"), group.logs()
    assert not group.run_dir.exists()
