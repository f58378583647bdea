"""Trackers of a run: the services of ``runtime.trackers``.

A tracker never stops or slows a run. Each has a thread and a bounded queue of its own. A tracker that raises is
switched off with one line on stderr; one that falls behind loses records, which are counted; one that hangs is left
behind at the end.
"""

from __future__ import annotations

import importlib.util
import json
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.provenance import read_provenance
from fr3e_jax.configuration.schema import Config
from fr3e_jax.runs.run_directory import RunDirectory, write_json_atomic
from fr3e_jax.runs.tracker_services import SERVICES, TrackedRun, Tracker

_MOST_WAITING = 1000  # records of one tracker
_END_SECONDS = 60.0  # for the records that wait at the end


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError for a tracker whose package, of the same name, is not installed; nothing is imported.

    The package of TensorBoard's files is a requirement of this one.
    """
    for name in names:
        if name != "tensorboard" and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"runtime.trackers has {name}, and its package is not installed; install it with "
                f"`python -m pip install {name}`, or take {name} off the list"
            )


class Trackers:
    """The trackers of a run, from ``services`` by name. Calls return at once; nothing that a tracker does raises here.

    A resumed run goes on under the ids that its trackers gave before; ``trackers.json`` holds them.
    """

    def __init__(
        self, names: Sequence[str], run: TrackedRun, services: Mapping[str, Callable[[], Tracker]] = SERVICES
    ) -> None:
        self._ids_file, self._lock = RunDirectory(run.directory).trackers, threading.Lock()
        self._ids = self._stored_ids()
        self._threads = [
            _TrackerThread(name, services[name], replace(run, id=self._ids.get(name)), self._store_id) for name in names
        ]

    def metrics(self, step: int, metrics: Mapping[str, Any], kind: str = "train") -> None:
        """Pass on the finite numbers of a record."""
        prefix = "" if kind == "train" else f"{kind}/"
        numbers = {prefix + key: float(value) for key, value in metrics.items() if _is_finite(value)}
        for thread in self._threads:
            thread.put("metrics", step, numbers)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Pass on a table."""
        for thread in self._threads:
            thread.put("table", name, step, columns, rows)

    def finish(self, failed: bool, seconds: float = _END_SECONDS) -> None:
        """End all runs; a tracker that needs longer than ``seconds`` is left behind and named."""
        for thread in self._threads:
            thread.end(failed)
        for thread in self._threads:
            thread.wait(seconds)

    def _stored_ids(self) -> dict[str, str]:
        """The ids of an earlier process of the run, by tracker; empty if there are none."""
        try:
            content = json.loads(self._ids_file.read_bytes())
        except (OSError, ValueError):
            return {}
        return {str(name): str(value) for name, value in content.items()} if isinstance(content, dict) else {}

    def _store_id(self, name: str, identity: str) -> None:
        with self._lock:
            self._ids[name] = identity
            write_json_atomic(self._ids_file, self._ids)


def open_trackers(config: Config, run_dir: RunDirectory, resume_step: int | None, *, writes: bool) -> Trackers:
    """The trackers that the settings name; none for a process that writes nothing.

    Args:
      config: the settings.
      run_dir: the run's directory.
      resume_step: step of the checkpoint that the run continues from; None: the run starts from the beginning.
      writes: false for all processes but the first.
    """
    run = TrackedRun(
        project=config.runtime.tracker_project,
        name=run_dir.path.resolve().name,
        directory=run_dir.path,
        id=None,
        first_step=0 if resume_step is None else resume_step + 1,
        settings=asdict(config),
        provenance=read_provenance(run_dir.path),
    )
    return Trackers(config.runtime.trackers if writes else (), run)


def _is_finite(value: Any) -> bool:
    try:
        return abs(float(value)) < float("inf")
    except (TypeError, ValueError):
        return False


class _TrackerThread:
    """One tracker, its queue and its thread."""

    def __init__(
        self, name: str, service: Callable[[], Tracker], run: TrackedRun, store_id: Callable[[str, str], None]
    ) -> None:
        self._name, self._service, self._run, self._store_id = name, service, run, store_id
        self._queue: queue.Queue = queue.Queue(_MOST_WAITING)
        self._off = threading.Event()
        self._lost = 0
        self._failed = False
        # A daemon: a tracker that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"fr3e-tracker-{name}", daemon=True)
        self._thread.start()

    def put(self, method: str, *arguments: Any) -> None:
        if self._off.is_set():
            return
        try:
            self._queue.put_nowait((method, arguments))
        except queue.Full:
            if not self._lost:
                _say(f"the tracker {self._name} is too slow; records are left out")
            self._lost += 1

    def end(self, failed: bool) -> None:
        self._failed = failed
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._off.set()

    def wait(self, seconds: float) -> None:
        self._thread.join(0.0 if self._off.is_set() else seconds)
        if self._lost:
            _say(f"the tracker {self._name} lost {self._lost} records, because it was too slow")
        if self._thread.is_alive() and not self._off.is_set():
            _say(f"the tracker {self._name} did not end within {seconds:g} s; its last records may be missing")

    def _work(self) -> None:
        try:
            tracker = self._service()
            if identity := tracker.start(self._run):
                self._store_id(self._name, identity)
            while (call := self._queue.get()) is not None:
                method, arguments = call
                getattr(tracker, method)(*arguments)
            tracker.finish(self._failed)
        except BaseException as error:  # a service may call sys.exit
            self._off.set()
            reason = " ".join(str(error).split())[:300]
            _say(f"the tracker {self._name} failed and is switched off: {type(error).__name__}: {reason}")


def _say(line: str) -> None:
    print(f"fr3e: {line}", file=sys.stderr, flush=True)
