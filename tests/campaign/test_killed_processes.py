"""One of two processes is killed at a random verdict: the other ends, says how to continue, and nothing is lost."""

from __future__ import annotations

import signal

import pytest
from campaign_cases import generator, log, seeded
from process_group import HEARTBEAT, Group, assert_same_records

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, tiny_run):
    """A run of two processes that nothing interrupted."""
    group = Group(tmp_path_factory.mktemp("two"), tiny_run, training__max_steps=3)
    assert group.run(2) == [0, 0], group.logs()
    return group.run_dir


@seeded(2)
def test_after_one_of_two_processes_is_killed_the_continued_run_is_equal(tmp_path, tiny_run, two_processes, seed):
    rng = generator("processes", seed)
    victim, verdict = rng.randrange(2), rng.randrange(20, 60)
    group = Group(tmp_path, tiny_run, training__max_steps=3)
    with group.started(2, environments={victim: {"FR3E_TEST_SIGNAL": f"SIGKILL {verdict}"}}) as processes:
        assert processes[victim].wait(timeout=300) == -signal.SIGKILL, group.logs()
        assert processes[1 - victim].wait(timeout=4 * HEARTBEAT) != 0, group.logs()
    assert "continue from the last checkpoint with fr3e train" in group.log(1 - victim), group.logs()
    assert group.run(2, "--resume") == [0, 0], group.logs()
    assert_same_records(group.run_dir, two_processes)
    log("SIGKILL of one of two processes", "the other ended; equal to the last bit after --resume", kills=1)
