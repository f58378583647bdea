"""Trackers beside a run: they get what the run writes, and nothing that they do reaches the run."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.runs.tracker_services import TrackedRun
from fr3e_jax.runs.trackers import Trackers, check_installed


class Recording:
    """A service that keeps its calls."""

    def __init__(self):
        self.calls = []

    def start(self, run):
        self.calls.append(("start", run.id))
        return "id-7"

    def metrics(self, step, numbers):
        self.calls.append(("metrics", step, numbers))

    def table(self, name, step, columns, rows):
        self.calls.append(("table", name, step, columns, rows))

    def finish(self, failed):
        self.calls.append(("finish", failed))


class Raising(Recording):
    def metrics(self, step, numbers):
        raise ConnectionError("the server\nis away")


class Exiting(Recording):
    def start(self, run):
        raise SystemExit(3)


class Hanging(Recording):
    def __init__(self):
        super().__init__()
        self.released = threading.Event()

    def metrics(self, step, numbers):
        self.released.wait()


@pytest.fixture
def run(tmp_path):
    return TrackedRun("project", "name", tmp_path, None, 0, {"seed": 0}, {})


def trackers_of(run, **services):
    return Trackers(list(services), run, {name: lambda service=service: service for name, service in services.items()})


def test_a_tracker_gets_finite_numbers_and_tables_in_order_and_keeps_its_id(run, tmp_path):
    service = Recording()
    trackers = trackers_of(run, one=service)
    trackers.metrics(0, {"greedy": 0.5, "broken": float("nan")}, "eval")
    trackers.metrics(1, {"reward/mean": 1, "text": "no number"})
    trackers.table("rollouts", 1, ("a",), [["x"]])
    trackers.finish(failed=False)
    assert service.calls == [
        ("start", None),
        ("metrics", 0, {"eval/greedy": 0.5}),
        ("metrics", 1, {"reward/mean": 1.0}),
        ("table", "rollouts", 1, ("a",), [["x"]]),
        ("finish", False),
    ]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"one": "id-7"}
    again = Recording()
    trackers_of(run, one=again).finish(failed=True)
    assert again.calls == [("start", "id-7"), ("finish", True)]


@pytest.mark.parametrize("broken", [Raising, Exiting])
def test_a_tracker_that_fails_is_switched_off_with_one_line_and_the_others_go_on(run, capsys, broken):
    good = Recording()
    trackers = trackers_of(run, bad=broken(), good=good)
    for step in range(3):
        trackers.metrics(step, {"x": 1.0})
    trackers.finish(failed=False)
    assert [call[0] for call in good.calls] == ["start", "metrics", "metrics", "metrics", "finish"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fr3e: the tracker bad failed and is switched off: ")


def test_a_tracker_that_hangs_loses_records_and_is_left_behind(run, capsys, monkeypatch):
    monkeypatch.setattr("fr3e_jax.runs.trackers._MOST_WAITING", 3)
    service = Hanging()
    trackers = trackers_of(run, slow=service)
    for step in range(10):
        trackers.metrics(step, {"x": 1.0})
    trackers.finish(failed=False, seconds=0.01)
    lines = capsys.readouterr().err.splitlines()
    service.released.set()
    assert lines[0] == "fr3e: the tracker slow is too slow; records are left out"
    assert lines[1].startswith("fr3e: the tracker slow lost ")


def test_damaged_ids_make_a_new_run(run, tmp_path):
    (tmp_path / "trackers.json").write_text("{")
    service = Recording()
    trackers_of(run, one=service).finish(failed=False)
    assert service.calls[0] == ("start", None)


def test_a_missing_package_and_an_unknown_name_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        check_installed(["wandb"])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: x\n")
    for names, expected in (("[wandp]", "nearest: wandb"), ("[mlflow,mlflow]", "twice")):
        with pytest.raises(ConfigError, match=expected):
            load_config(str(recipe), [f"runtime.trackers={names}"])


def test_mlflow_keeps_metrics_settings_and_tables(run, tmp_path, monkeypatch):
    client = pytest.importorskip("mlflow.tracking", reason="mlflow is not installed").MlflowClient
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    trackers = Trackers(["mlflow"], run)
    trackers.metrics(1, {"updates": 2, "updates/empty": 0, "reward/mean": 0.5})
    trackers.metrics(1, {"avg@16": 0.25}, "eval")
    trackers.table("rollouts", 1, ("a",), [["x"]])
    trackers.finish(failed=True)
    identity = json.loads((tmp_path / "trackers.json").read_text())["mlflow"]
    held = client(str(tmp_path / "mlruns")).get_run(identity)
    assert held.data.metrics == {"updates": 2, "updates.empty": 0, "reward.mean": 0.5, "eval.avg_at_16": 0.25}
    assert held.data.params == {"seed": "0"} and held.info.status == "FAILED"
    (table,) = tmp_path.rglob("rollouts/step_000001.json")
    assert json.loads(table.read_text()) == {"columns": ["a"], "data": [["x"]]}


def test_wandb_writes_an_offline_run(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    trackers = Trackers(["wandb"], run)
    trackers.metrics(1, {"reward/mean": 0.5})
    trackers.table("rollouts", 1, ("a", "b"), [["x", None], ["y", 1.0]])
    trackers.finish(failed=False)
    identity = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    (stored,) = (tmp_path / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb")
    written = lambda: all(name in stored.read_bytes() for name in (b"reward/mean", b"rollouts"))
    for _ in range(300):  # a process of wandb writes it
        if written():
            break
        time.sleep(0.1)
    assert written()


def test_trackio_keeps_its_run_by_name(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read at the import
    pytest.importorskip("trackio", reason="trackio is not installed")
    trackers = Trackers(["trackio"], run)
    trackers.metrics(1, {"reward/mean": 0.5})
    trackers.finish(failed=False)
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"trackio": "name"}
    assert list((tmp_path / "trackio").glob("*.db"))


def events_of(folder: Path) -> list[Event]:
    events = []
    for path in sorted(folder.iterdir()):
        content, position = path.read_bytes(), 0
        while position < len(content):
            # TFRecord: length (8 bytes), its checksum (4), the event, its checksum (4).
            length = int.from_bytes(content[position : position + 8], "little")
            events.append(Event.FromString(content[position + 12 : position + 12 + length]))
            position += length + 16
    return events


def test_tensorboard_gets_the_same_numbers_and_purges_repeated_steps(run, tmp_path):
    trackers = Trackers(["tensorboard"], run)
    trackers.metrics(4, {"reward/mean": 0.25, "loss": float("nan")})
    trackers.metrics(4, {"avg@16": 0.5}, kind="eval")
    trackers.table("rollouts", 4, ("a",), [["x"]])
    trackers.finish(failed=False)
    events = events_of(tmp_path / "tensorboard")
    scalars = {value.tag: (event.step, value.simple_value) for event in events for value in event.summary.value}
    assert scalars == {"reward/mean": (4, 0.25), "eval/avg_16": (4, 0.5)}
    assert not (tmp_path / "trackers.json").exists()
    Trackers(["tensorboard"], dataclasses.replace(run, first_step=3)).finish(failed=False)
    starts = [event.step for event in events_of(tmp_path / "tensorboard") if event.session_log.status == 1]
    assert starts == [0, 3]
