"""Kills and signals at random moments: the resumed run equals the run that nothing interrupted."""

from __future__ import annotations

import re
import shutil
import signal
import time

import pytest
from campaign_cases import generator, log, seeded
from run_comparison import assert_same_run, reader
from stops import Watched

from fr3e_jax.loop.train import train

pytestmark = pytest.mark.campaign
START_UP = 2.5  # seconds before a process does anything that a signal could spoil


def interrupt(process, number: int, seconds: float) -> int:
    """Send a signal after ``seconds``, unless the process ends before; return its exit code."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    if process.poll() is None:
        process.send_signal(number)
    return process.wait(timeout=300)


@seeded()
def test_a_run_killed_at_random_moments_equals_an_uninterrupted_one(run_process, finished_run, session, seed):
    rng, run, kills = generator("kills", seed), run_process(), 0
    code = -signal.SIGKILL
    while code == -signal.SIGKILL and kills < 4:
        code = interrupt(run.start(*run.resume_arguments()), signal.SIGKILL, START_UP + rng.expovariate(1 / 2))
        kills += code == -signal.SIGKILL
    if code:
        code = run.run(*run.resume_arguments())
    assert code == 0, run.log.read_text()
    assert_same_run(run.run_dir, finished_run, session)
    log("SIGKILL at a random moment", "equal to the last bit", kills=kills)


@seeded()
def test_a_run_killed_at_random_verdicts_equals_an_uninterrupted_one(run_process, finished_run, session, seed):
    """In the evaluation of the start, then between two rollouts of a round, so that each stage of a step is met."""
    rng, run, kills = generator("verdicts", seed), run_process(), 1
    code = run.run(signal_at="SIGKILL 5")
    with reader(run.run_dir) as checkpoints:
        assert (code, checkpoints.latest_step()) == (-signal.SIGKILL, None)
    while code == -signal.SIGKILL and kills < 4:
        code = run.run(*run.resume_arguments(), signal_at=f"SIGKILL {rng.randrange(1, 120)}")
        kills += code == -signal.SIGKILL
    if code:
        code = run.run(*run.resume_arguments())
    assert code == 0, run.log.read_text()
    assert_same_run(run.run_dir, finished_run, session)
    log("SIGKILL between two verdicts", "equal to the last bit", kills=kills)


@seeded()
def test_a_run_killed_while_a_checkpoint_is_written_equals_an_uninterrupted_one(
    run_process, finished_run, session, seed
):
    run, steps = run_process(), sorted(generator("checkpoints", seed).sample(range(1, 5), 2))
    for step in steps:
        run.kill_after_line(step, *run.resume_arguments())
    assert run.run(*run.resume_arguments()) == 0, run.log.read_text()
    assert_same_run(run.run_dir, finished_run, session)
    log("SIGKILL while a checkpoint is written", "equal to the last bit", kills=len(steps))


@seeded()
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_run_told_to_stop_at_a_random_moment_equals_an_uninterrupted_one(
    run_process, finished_run, session, seed, name
):
    number, rng, run, stops = signal.Signals[name], generator(name, seed), run_process(), 0
    for _ in range(2):
        code = interrupt(run.start(*run.resume_arguments()), number, rng.uniform(1, 7))
        # 0: the last finished step is saved, or the run was over; else nothing had begun that cannot be repeated
        assert code in (0, 128 + number, -number), run.log.read_text()
        stops += 1
        if (run.run_dir / "summary.json").exists():
            break
    else:
        assert run.run(*run.resume_arguments()) == 0, run.log.read_text()
    assert "Traceback" not in without_dropped_interrupts(run.log.read_text())
    assert_same_run(run.run_dir, finished_run, session)
    log(f"{name} at a random moment", "equal to the last bit", signals=stops)


def without_dropped_interrupts(log_text: str) -> str:
    """The log without each Ctrl-C that Python reports and drops, as in a garbage collection or a weak reference."""
    report = r"Exception ignored in[^\n]*\n(?:Traceback(?:(?!Traceback).)*?)?^KeyboardInterrupt"
    return re.sub(report, "", log_text, flags=re.DOTALL | re.MULTILINE)


def test_only_an_interrupt_that_python_dropped_is_taken_out_of_a_log():
    traceback = "Traceback (most recent call last):\n  File ...\n\nKeyboardInterrupt: \n"
    dropped = "Exception ignored in: <function _remove>\n" + traceback
    assert "Traceback" not in without_dropped_interrupts("starting\n" + dropped + "step 1\n")
    assert "Traceback" in without_dropped_interrupts(dropped + traceback)
    assert "Traceback" in without_dropped_interrupts(dropped.replace("KeyboardInterrupt", "ValueError") + dropped)


MOMENTS = 60  # chunks and optimizer steps of a process that makes progress


@seeded()
def test_a_run_stopped_and_killed_at_random_moments_equals_an_uninterrupted_one(
    run_process, finished_run, session, seed
):
    """Two thirds of the signals ask to stop; SIGKILL comes without warning."""
    rng, run, signals = generator("moments", seed), run_process(), 0
    while signals < 5 and not (run.run_dir / "summary.json").exists():
        name, point = rng.choice(["SIGTERM", "SIGHUP", "SIGKILL"]), rng.randrange(1, MOMENTS)
        code = run.run(*run.resume_arguments(), stop_at=f"{name} any {point}")
        assert code in (0, -signal.SIGKILL) and (name == "SIGKILL" or code == 0), run.log.read_text()
        signals += 1
    if not (run.run_dir / "summary.json").exists():
        assert run.run(*run.resume_arguments()) == 0, run.log.read_text()
    assert "Traceback" not in run.log.read_text()
    assert_same_run(run.run_dir, finished_run, session)
    log("SIGTERM, SIGHUP or SIGKILL at a random chunk or update", "equal to the last bit", signals=signals)


@seeded()
def test_what_a_kill_leaves_at_any_of_many_moments_continues_equal(
    tmp_path, tiny_run, finished_run, session, monkeypatch, seed
):
    """The directory is copied while the run pauses at a chunk or update; its last checkpoint may still be written."""
    rng, run, copies, due = generator("copies", seed), tmp_path / "run", [], [3]

    def copy(moments: list[str]) -> bool:
        if len(moments) >= due[-1]:
            due.append(len(moments) + rng.randrange(5, 15))
            copies.append(tmp_path / f"copy_{len(moments)}")
            for _ in range(100):  # a checkpoint gets its final name while it is copied
                try:
                    shutil.copytree(run, copies[-1])
                    break
                except (shutil.Error, FileNotFoundError):
                    shutil.rmtree(copies[-1])
        return False

    with monkeypatch.context() as patch:
        Watched(patch, copy)
        assert train(tiny_run.config(), run) == 0
    assert len(copies) >= 6
    for left in copies:
        assert train(tiny_run.config(), left, resume=True) == 0
        assert_same_run(left, finished_run, session)
    log("a copy made at a random chunk or update, as a kill leaves it", "equal to the last bit", copies=len(copies))
