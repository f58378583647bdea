"""A run in an object store is the run in a folder, to the last digit, also after kills and on another machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from object_store import BUCKET, Wire, unclosed
from run_comparison import assert_same_run
from run_process import ROOT, RunProcess, wait_until
from stops import Watched, after_update

from fr3e_jax.configuration import ConfigError
from fr3e_jax.loop.train import train
from fr3e_jax.runs.run_directory import RunDirectory, check_seen_by_all
from fr3e_jax.stores.mirror import MirroredRun, working_copy
from fr3e_jax.stores.objects import Store
from fr3e_jax.stores.reading import run_folder


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A call begins a new machine, without copies of anything."""
    numbers = itertools.count()
    begin = lambda: monkeypatch.setenv("FR3E_STORE_CACHE", str(tmp_path / f"machine_{next(numbers)}"))
    begin()
    return begin


def test_a_stopped_run_goes_on_on_another_machine(
    tmp_path, tiny_run, machine, monkeypatch, capsys, finished_run, session
):
    address = f"file://{tmp_path}/bucket/run"
    config = tiny_run.config(runtime__run_dir=address, runtime__console="plain", checkpoint__every=9)
    with monkeypatch.context() as patch:
        Watched(patch, after_update("explore", 3))
        assert train(config) == 0
    assert MirroredRun.read(Store(address)).checkpoints() == {"checkpoints/1/"}
    machine()
    assert train(tiny_run.config(runtime__run_dir=address, runtime__console="plain"), address, resume=True) == 0
    assert "resumed from the checkpoint of step 1" in capsys.readouterr().out
    machine()
    assert_same_run(run_folder(address, checkpoints=True), finished_run, session)
    with pytest.raises(ConfigError, match=f"runtime.run_dir={address} already holds a run"):
        train(config)


def test_a_run_below_an_address_is_named_like_one_in_a_folder(tmp_path, tiny_run, machine, capsys):
    output = f"file://{tmp_path}/bucket"
    settings = {"training__max_steps": 1, "evaluation__every": 0, "runtime__console": "plain"}
    assert train(tiny_run.config(runtime__output_dir=output, **settings)) == 0
    (name,) = Store(output).folders()
    assert name.startswith("tiny-20")
    assert f"run directory: {output}/{name}" in capsys.readouterr().out


def test_a_store_that_fails_ends_the_run_with_what_to_do(tmp_path, tiny_run, machine, monkeypatch, capsys):
    """The checkpoint that could not be uploaded is in the working copy, from which the run goes on."""
    address = f"file://{tmp_path}/bucket/run"
    monkeypatch.setattr("fr3e_jax.stores.mirror.TRIES", 1)
    with monkeypatch.context() as away:
        away.setattr(MirroredRun, "write", lambda *_: (_ for _ in ()).throw(OSError("no route to host")))
        assert train(tiny_run.config(training__max_steps=2, runtime__run_dir=address)) == 1
    assert f"no route to host; nothing is lost: the files are in {working_copy(address)}" in capsys.readouterr().err
    assert MirroredRun.read(Store(address)) is None
    assert train(tiny_run.config(training__max_steps=2, runtime__run_dir=address), address, resume=True) == 0
    assert "checkpoints/2/" in MirroredRun.read(Store(address)).checkpoints()


def test_machines_that_do_not_share_the_working_copy_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="do not share its working copy.*set FR3E_STORE_CACHE"):
        check_seen_by_all(RunDirectory(tmp_path), lambda own: [True, own])


class StoredRunProcess(RunProcess):
    """A run in the bucket, each of whose processes may run on a new machine."""

    def __init__(self, folder: Path, tiny_run, wire: Wire, **settings):
        super().__init__(folder, tiny_run, runtime__run_dir=f"{BUCKET}/run", **settings)
        self.folder, self.wire = folder, wire

    def on_machine(self, number: int) -> None:
        """From now on, this process and those that it starts are on this machine."""
        os.environ["FR3E_STORE_CACHE"] = str(self.folder / f"machine_{number}")


@pytest.fixture
def stored_run(tmp_path, tiny_run, bucket):
    """A run whose bytes pass a wire."""
    run = StoredRunProcess(tmp_path, tiny_run, bucket, checkpoint__keep_last=2)
    yield run
    run.close()


def in_store() -> set[str]:
    run = MirroredRun.read(Store(f"{BUCKET}/run"))
    return run.checkpoints() if run else set()


@unclosed
@pytest.mark.slow
def test_a_run_in_a_store_killed_three_times_equals_an_uninterrupted_one(stored_run, finished_run, session):
    """Killed once its first checkpoint is in the store; then in a slow upload; then on a third machine."""
    run = stored_run
    process = run.start("--continue")
    wait_until(lambda: "checkpoints/1/" in in_store(), process)
    process.kill()
    process.wait()

    run.on_machine(1)
    run.wire.pause = 0.05
    before, copy = in_store(), RunDirectory(run.folder / "machine_1" / "runs" / "s3" / "runs-of-tests" / "run")
    process = run.start("--continue")
    newer = lambda: {f"checkpoints/{path.name}/" for path in copy.checkpoints.glob("[0-9]")} - in_store() - before
    wait_until(newer, process)
    up = run.wire.bytes_up
    wait_until(lambda: run.wire.bytes_up > up + 2_000, process)
    process.kill()
    process.wait()
    assert in_store() <= {f"checkpoints/{step}/" for step in range(1, 5)}

    run.on_machine(2)
    run.wire.pause = 0.0
    assert run.run("--continue", signal_at="SIGKILL 30") == -signal.SIGKILL, run.log.read_text()

    run.on_machine(3)
    assert run.run("--continue") == 0, run.log.read_text()
    assert_same_run(run_folder(f"{BUCKET}/run", checkpoints=True), finished_run, session)


@unclosed
@pytest.mark.slow
def test_a_run_has_its_compilation_cache_at_an_address(stored_run):
    run, address = stored_run, f"{BUCKET}/run"
    cache = f"runtime.compilation_cache={BUCKET}/xla"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(ROOT)}

    def fr3e(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fr3e_jax", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    fr3e("train", str(run.recipe), cache, "training.max_steps=1")
    assert any(name.endswith("-cache") for name in Store(f"{BUCKET}/xla").below())
    assert "nearest" not in fr3e("train", f"{address}/config.yaml", "--resume", address, "--print-config")
