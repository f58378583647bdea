"""local.sh and worker.sh: one process or several, continuing by the same command, signals, exit codes and logs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fr3e_jax.configuration import to_yaml

SHOW = 'echo "$JAX_PROCESS_ID/$JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS, $JAX_NUM_CPU_DEVICES $JAX_PLATFORMS"'


def test_single_process_becomes_fr3e_train_with_continue(bench):
    fr3e, run = bench.stub("fr3e", "echo hello"), str(bench.folder / "run")
    result = bench.launch("local.sh", bench.recipe, "data.root=a b", FR3E=fr3e, RUN_DIR=run)
    assert (result.returncode, result.stdout) == (0, "hello\n")
    assert bench.calls("fr3e") == [rf"train {bench.recipe} data.root=a\ b --continue runtime.run_dir={run}"]
    log = Path(run, "logs/process_0.log").read_text()
    assert "fr3e train" in log and log.endswith("hello\n")


def test_several_processes_get_their_number_count_and_coordinator(bench):
    fr3e, run = bench.stub("fr3e", SHOW), bench.folder / "run"
    result = bench.launch("local.sh", "-n", "3", bench.recipe, FR3E=fr3e, RUN_DIR=str(run), CPU_DEVICES="4")
    assert result.returncode == 0, result.stderr
    lines = lambda i: (run / f"logs/process_{i}.log").read_text().splitlines()
    wait_for(lambda: all(len(lines(i)) == 2 for i in range(3)))  # what writes a log may end after its process
    logs = [lines(i)[-1] for i in range(3)]
    assert [line.split(" at ")[0] for line in logs] == ["0/3", "1/3", "2/3"]
    assert len({line.split(" at ")[1] for line in logs}) == 1 and logs[0].endswith(", 4 cpu")
    assert result.stdout.splitlines() == logs[:1], "only the first process speaks"


def test_failed_process_gives_its_code_and_the_folder_of_logs(bench):
    fr3e = bench.stub("fr3e", 'exit "$((JAX_PROCESS_ID * 3))"')
    result = bench.launch("local.sh", "-n", "2", bench.recipe, FR3E=fr3e, RUN_DIR=str(bench.folder / "run"))
    assert result.returncode == 3
    assert f"a process ended with code 3; the logs are in {bench.folder}/run/logs" in result.stderr


WAITS = """trap 'echo saved; exit 0' TERM
echo ready
touch "$READY/$JAX_PROCESS_ID"
while true; do sleep 0.05; done"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_every_process(bench, number):
    fr3e, run, ready = bench.stub("fr3e", WAITS), bench.folder / "run", bench.folder / "ready"
    ready.mkdir()
    launcher = bench.start("local.sh", "-n", "2", bench.recipe, FR3E=fr3e, RUN_DIR=str(run), READY=str(ready))
    wait_for(lambda: len(list(ready.iterdir())) == 2)
    launcher.send_signal(number)
    assert launcher.wait(timeout=60) == 0, launcher.stdout.read()
    launcher.stdout.close()
    for index in range(2):
        wait_for(lambda index=index: (run / f"logs/process_{index}.log").read_text().endswith("saved\n"))


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize("finished", [False, True])
def test_worker_that_ends_early_returns_the_unfinished_code(bench, finished):
    """Kubernetes would take code 0 for the end of the whole run."""
    run = bench.folder / "run"
    run.mkdir()
    fr3e = bench.stub("fr3e", f"{'touch ' + str(run / 'summary.json') if finished else ''}\necho over")
    result = bench.launch("worker.sh", bench.recipe, FR3E=fr3e, RUN_DIR=str(run), UNFINISHED_CODE="75")
    assert (result.returncode, result.stdout) == (0 if finished else 75, "over\n")


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {}, "no recipe given"),
        (["nowhere.yaml"], {}, "there is no recipe nowhere.yaml"),
        (["-n", "0", "x"], {}, "processes=0 does not look like a number of processes"),
        (["-x"], {}, "unknown option -x"),
        (["RECIPE"], {"FR3E": "/no/fr3e"}, "there is no program /no/fr3e; run `make` in the repository"),
    ],
)
def test_mistake_is_one_line_and_code_two(bench, arguments, variables, message):
    arguments = [bench.recipe if argument == "RECIPE" else argument for argument in arguments]
    result = bench.launch("local.sh", *arguments, RUN_DIR=str(bench.folder / "run"), **variables)
    assert result.returncode == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_two_real_processes_train_and_the_same_command_continues(bench, tiny_run):
    fr3e, run = str(Path(sys.executable).with_name("fr3e")), bench.folder / "run"
    recipe = bench.folder / "tiny.yaml"
    recipe.write_text(to_yaml(tiny_run.config(evaluation__every=0)))
    for steps in (1, 2):
        command = ["-n", "2", str(recipe), f"training.max_steps={steps}"]
        compiling = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
        launcher = bench.start("local.sh", *command, **compiling | {"FR3E": fr3e, "RUN_DIR": str(run)})
        output, _ = launcher.communicate(timeout=400)
        assert launcher.returncode == 0, output
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == [1, 2]
