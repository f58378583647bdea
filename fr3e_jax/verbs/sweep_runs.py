"""The runs of a sweep: a directory and a process for each, begun, watched and stopped here."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fr3e_jax.runs.run_state import Summary, read_summary

POLL_SECONDS = 0.1
RECIPE = "recipe"  # the axis of an experiment's recipes


@dataclass
class Run:
    """One combination. ``exit_code`` and ``seconds`` are None until it ends, ``summary`` if it wrote none."""

    settings: dict[str, str]
    run_dir: str
    log: str
    command: list[str]
    exit_code: int | None = None
    seconds: float | None = None
    summary: Summary | None = None

    @property
    def is_finished(self) -> bool:
        """It has spent its budget. A run that is told to stop ends with 0 as well, and writes no summary."""
        return self.exit_code == 0 and self.summary is not None


def as_overrides(settings: dict[str, str]) -> list[str]:
    """The settings for the command line, without the name of the recipe."""
    return [f"{key}={value}" for key, value in settings.items() if key != RECIPE]


def safe_name(text: str, longest: int = 120) -> str:
    """The text as part of a file name: characters that are special to file systems or shells become ``_``."""
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)[:longest]


def make_runs(verb: str, combinations: list[dict], folder: Path, varied: Sequence[str]) -> list[Run]:
    """The runs with their directories and commands. The ``varied`` settings, and recipes, label the directories."""
    runs = []
    for index, settings in enumerate(combinations):
        chosen = [Path(settings[RECIPE]).stem] if RECIPE in varied else []
        label = safe_name(",".join(chosen + as_overrides({key: settings[key] for key in varied})))
        run_dir = folder / f"{index:03d}-{label}".rstrip("-")
        overrides = [*as_overrides(settings), f"runtime.run_dir={run_dir}"]
        command = [sys.executable, "-m", "fr3e_jax", verb, settings[RECIPE], *overrides]
        runs.append(Run(settings, str(run_dir), str(run_dir / "log.txt"), command))
    return runs


def execute(runs: Sequence[Run], jobs: int, ended: Callable[[Run], None], seconds: float = float("inf")) -> bool:
    """Run ``jobs`` processes at a time until all have ended; if interrupted, stop them.

    Args:
      runs: the runs.
      jobs: processes at the same time.
      ended: called with each run that has ended.
      seconds: no run begins after so many.

    Returns:
      true if all runs have run.
    """
    started = time.monotonic()
    waiting = deque(runs)
    running: list[tuple[Run, subprocess.Popen, float]] = []
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a killed sweep stops its runs
    try:
        while running or (waiting and time.monotonic() - started < seconds):
            while waiting and len(running) < jobs and time.monotonic() - started < seconds:
                run = waiting.popleft()
                running.append((run, _start(run), time.monotonic()))
            time.sleep(POLL_SECONDS)
            for entry in [entry for entry in running if entry[1].poll() is not None]:
                running.remove(entry)
                _end(*entry)
                ended(entry[0])
        return not waiting
    except KeyboardInterrupt:
        print(f"stopping {len(running)} runs, which save first; Ctrl-C again ends them at once", flush=True)
        for _, process, _ in running:
            process.terminate()
        try:
            for entry in running:
                entry[1].wait()
        except KeyboardInterrupt:
            for _, process, _ in running:
                process.kill()
        for entry in running:
            entry[1].wait()
            _end(*entry)
            ended(entry[0])
        return False
    finally:
        signal.signal(signal.SIGTERM, former)


def _start(run: Run) -> subprocess.Popen:
    Path(run.run_dir).mkdir(exist_ok=True)
    with open(run.log, "a") as log:
        return subprocess.Popen(run.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def _end(run: Run, process: subprocess.Popen, started: float) -> None:
    run.exit_code, run.seconds = process.returncode, round(time.monotonic() - started, 1)
    run.summary = read_summary(Path(run.run_dir, "summary.json"))
