"""Worker processes: killed at their deadline, replaced if they die or answer wrongly, gone after their owner's end."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from fr3e_jax.configuration.schema import RewardsConfig
from fr3e_jax.rewards import job_runner, workers
from fr3e_jax.rewards.pool import Pool
from fr3e_jax.rewards.workers import Reply, Worker
from fr3e_jax.verdict import Job

FUNCTIONS = str(Path(__file__).with_name("grading_functions.py"))
PATIENCE = 60  # seconds; generous, for a busy machine


def run(pool: Pool, function: str, *arguments: object, deadline: float | None = None) -> Reply:
    return start(pool, function, *arguments, deadline=deadline).result(timeout=PATIENCE)


def start(pool: Pool, function: str, *arguments: object, deadline: float | None = None) -> Future[Reply]:
    reply: Future[Reply] = Future()
    pool.submit(Job(f"{FUNCTIONS}:{function}", arguments, deadline), reply.set_result)
    return reply


def settings(**changes: float) -> RewardsConfig:
    return RewardsConfig(**{"workers": 2, "deadline_seconds": 20.0, **changes})


@pytest.fixture(scope="module")
def pool():
    pool = Pool(settings())
    yield pool
    pool.close()


@pytest.fixture
def own_pool():
    """Makes pools that are closed after the test."""
    made = []

    def make(*arguments, **changes) -> Pool:
        made.append(Pool(settings(**changes), *arguments))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_job_is_run_and_answered_with_a_number_or_a_verdict(pool):
    assert run(pool, "grade", "4", "4") == Reply("verdict", 1.0)
    assert run(pool, "grade", "4", "5") == Reply("verdict", 0.0)
    assert run(pool, "refuse") == Reply("verdict", 0.0, "refused")


def test_a_worker_that_is_gone_after_its_deadline_counts_as_late_and_not_as_dead():
    """The kernel ends a worker at twice its CPU time: such a job is a time-out and does not run again."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(0, ours, pid=gone.pid)
        worker.request(b"", seconds=1.0, clock_seconds=5.0)
        assert not worker.is_late(time.monotonic())
        assert worker.is_late(time.monotonic() + 1.5)


@pytest.mark.parametrize("call", [("behave", "spin"), ("behave", "spin past every signal"), ("spin_in_a_child",)])
def test_a_worker_that_computes_too_long_is_killed_by_its_cpu_time(own_pool, call, monkeypatch):
    monkeypatch.setattr("fr3e_jax.rewards.pool.WALL_CLOCK_FACTOR", 1e6)
    pool = own_pool()
    assert run(pool, *call, deadline=0.2).kind == "timeout"


def test_the_limit_of_a_job_ends_no_import_of_the_next_function(monkeypatch):
    """A large library takes more CPU seconds to load than most jobs have."""
    limits, hard = [], 100
    monkeypatch.setattr(job_runner.resource, "getrlimit", lambda what: (hard, hard))
    monkeypatch.setattr(job_runner.resource, "setrlimit", lambda what, both: limits.append(both))
    monkeypatch.setattr(job_runner.sys, "setrecursionlimit", lambda limit: None)
    monkeypatch.setattr(job_runner.time, "process_time", lambda: 1.0)
    runner, function = job_runner.JobRunner(), f"{FUNCTIONS}:grade"
    for request in (("check", function), ("run", function, ("3", "3"), 1.0), ("check", f"{FUNCTIONS}:refuse")):
        assert runner.answer(pickle.dumps(request))["kind"] in ("ready", "verdict")
    assert limits[0] == limits[-1] == (hard, hard) and limits[1][0] < hard


def test_a_worker_that_sleeps_is_killed_by_the_clock_some_time_after_the_deadline(own_pool, monkeypatch):
    monkeypatch.setattr("fr3e_jax.rewards.pool.WALL_CLOCK_FACTOR", 4)
    pool = own_pool()
    assert run(pool, "grade", "4", "4").kind == "verdict"
    start = time.monotonic()
    assert run(pool, "behave", "sleep", deadline=0.2).kind == "timeout"
    assert time.monotonic() - start >= 0.8


def test_a_worker_that_a_busy_machine_stops_for_longer_than_its_deadline_gives_its_verdict(
    own_pool, tmp_path, monkeypatch
):
    monkeypatch.setattr("fr3e_jax.rewards.pool.WALL_CLOCK_FACTOR", 1000)
    pool, go, pid = own_pool(), tmp_path / "go", tmp_path / "pid"
    reply = start(pool, "wait_for", str(go), str(pid), deadline=0.2)
    wait_until(lambda: pid.exists() and pid.read_text())
    os.kill(int(pid.read_text()), signal.SIGSTOP)
    time.sleep(0.6)
    assert not reply.done()
    os.kill(int(pid.read_text()), signal.SIGCONT)
    go.touch()
    assert reply.result(timeout=PATIENCE) == Reply("verdict", 1.0)


@pytest.mark.parametrize("manner", ["exit", "crash"])
def test_a_job_that_kills_its_worker_twice_is_given_up(pool, manner):
    assert run(pool, "behave", manner).kind == "worker_died"


def test_a_job_whose_worker_died_is_run_again_on_a_fresh_one(pool, tmp_path):
    assert run(pool, "die_once", str(tmp_path / "died")) == Reply("verdict", 1.0)


@pytest.mark.parametrize(
    ("manner", "error"),
    [
        ("memory", "MemoryError"),
        ("recursion", "RecursionError"),
        ("system exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("raise", "no such answer"),
    ],
)
def test_an_exception_of_a_function_comes_back_as_text(pool, manner, error):
    reply = run(pool, "behave", manner)
    assert reply.kind == "raised"
    assert error in reply.text


def test_a_result_of_another_type_comes_back_as_its_repr(pool):
    assert run(pool, "start_a_child.__name__.upper") == Reply("unusable", text="'START_A_CHILD'")


def test_a_worker_that_sends_nonsense_is_taken_for_dead(pool):
    assert run(pool, "write_nonsense", deadline=PATIENCE).kind == "worker_died"


def test_many_jobs_with_some_that_hang_or_die_all_get_their_reply(own_pool):
    pool = own_pool(deadline_seconds=0.3)
    manners = {7: "spin", 50: "exit", 90: "sleep", 120: "crash", 160: "raise"}
    replies = [start(pool, "behave", manners.get(i, "well"), i) for i in range(200)]
    kinds = [reply.result(timeout=PATIENCE).kind for reply in replies]
    expected = {7: "timeout", 50: "worker_died", 90: "timeout", 120: "worker_died", 160: "raised"}
    assert {i: kinds[i] for i in expected} == expected
    assert kinds.count("verdict") == 195


def test_others_do_not_wait_for_a_worker_that_hangs(own_pool):
    pool = own_pool(workers=1)
    assert run(pool, "grade", "4", "4").kind == "verdict"
    hanging = start(pool, "behave", "sleep", deadline=6.0)
    assert run(pool, "grade", "4", "4").kind == "verdict"
    assert not hanging.done()


def test_processes_that_a_killed_worker_has_started_are_killed_too(pool, tmp_path):
    path = tmp_path / "pid"
    assert run(pool, "start_a_child", str(path), deadline=0.2).kind == "timeout"
    wait_until(lambda: not is_running(int(path.read_text())))


def test_a_worker_is_replaced_after_its_share_of_jobs(own_pool, monkeypatch):
    monkeypatch.setattr("fr3e_jax.rewards.pool.JOBS_PER_WORKER", 3)
    pool = own_pool(workers=1)
    pids = [run(pool, "worker_pid", i).reward for i in range(9)]
    assert [pids[i] == pids[0] for i in range(4)] == [True, True, True, False]
    assert len(set(pids)) == 3


def test_a_function_that_fails_its_canaries_from_the_start_is_broken(pool):
    reply = run(pool, "always_wrong", "4")
    assert reply.kind == "broken"
    assert "gives 0.0 for its canary ('4',); expected 1.0" in reply.text


@pytest.mark.parametrize(
    ("source", "reason"),
    [("import no_such_module_at_all", "No module named 'no_such_module_at_all'"), ("import os; os._exit(1)", "died")],
)
def test_a_file_that_cannot_be_imported_is_broken_at_once_and_says_why(pool, tmp_path, source, reason):
    path = tmp_path / "wrong.py"
    path.write_text(source)
    reply: Future[Reply] = Future()
    pool.submit(Job(f"{path}:grade", ()), reply.set_result)
    assert reply.result(timeout=PATIENCE).kind == "broken"
    assert f"no worker can run the verifier {path}:grade" in reply.result().text
    assert reason in reply.result().text


def test_a_memory_limit_below_the_need_of_a_worker_is_broken_at_once_and_says_so(own_pool):
    reply = run(own_pool(memory_mb=30), "grade", "4", "4")
    assert reply.kind == "broken"
    assert "rewards.memory_mb is 30, but a worker needs" in reply.text


def test_arguments_that_cannot_be_sent_are_an_error(pool):
    with pytest.raises(TypeError, match=r"grade cannot be sent to a worker: .* pass plain values"):
        start(pool, "grade", lambda: 0)


def test_a_closed_pool_replies_to_its_jobs_as_broken_and_refuses_more(own_pool):
    pool = own_pool(workers=1)
    left = [start(pool, "behave", "sleep", i) for i in range(3)]
    pool.close()
    assert [reply.result(timeout=PATIENCE).kind for reply in left] == ["broken"] * 3
    with pytest.raises(RuntimeError, match="closed"):
        start(pool, "grade", "4", "4")


def test_the_pool_survives_the_death_of_the_process_that_forks_workers(own_pool):
    pool = own_pool()
    assert run(pool, "grade", "4", "4").kind == "verdict"
    os.kill(pool._workers._process.pid, signal.SIGKILL)
    assert run(pool, "grade", "4", "4").kind == "verdict"


def test_all_jobs_are_answered_if_that_process_cannot_be_started_again(own_pool, monkeypatch):
    pool = own_pool(workers=4)
    assert run(pool, "grade", "4", "4").kind == "verdict"
    replies = [start(pool, "behave", "sleep") for _ in range(12)]
    wait_until(lambda: len(pool._running) == 4)
    monkeypatch.setattr(workers.subprocess, "Popen", lambda *_, **__: (_ for _ in ()).throw(OSError(12, "no memory")))
    os.kill(pool._workers._process.pid, signal.SIGKILL)
    assert {reply.result(timeout=PATIENCE).kind for reply in replies} == {"broken"}


OWNER = """
import os, sys, time
from concurrent.futures import Future
from fr3e_jax.configuration.schema import RewardsConfig
from fr3e_jax.rewards.pool import Pool
from fr3e_jax.verdict import Job
if sys.argv[3] == "end":
    import jax.numpy as jnp
    assert jnp.ones(3).sum() == 3  # with all the threads that jax starts
pool = Pool(RewardsConfig(workers=2))
for i in range(2):
    pool.submit(Job(sys.argv[1] + ":note", (sys.argv[2], i)), print)
    pool.submit(Job(sys.argv[1] + ":hang_once", (sys.argv[2],), 600.0), print)
while len(open(sys.argv[2]).readlines() if os.path.exists(sys.argv[2]) else ()) < 4:
    time.sleep(0.01)
print(pool._workers._process.pid, flush=True)
if sys.argv[3] == "end":
    sys.exit()
time.sleep(1000)
"""


@pytest.mark.parametrize("ending", ["end", signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_owner_however_that_ends(tmp_path, ending):
    """The owner has no standard input and is no file that could be imported again; the first one runs jax."""
    notes = tmp_path / "notes"
    command = [sys.executable, "-c", OWNER, FUNCTIONS, str(notes), str(ending)]
    with subprocess.Popen(["sh", "-c", 'exec "$@" <&-', "sh", *command], stdout=subprocess.PIPE, text=True) as owner:
        lines = iter(owner.stdout.readline, "")
        zygote = next(int(line) for line in lines if line.strip().isdecimal())
        if ending != "end":
            owner.send_signal(ending)
    pids = {zygote, *map(int, notes.read_text().split())}
    assert len(pids) >= 3
    wait_until(lambda: not any(map(is_running, pids)))
