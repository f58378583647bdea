"""Worker processes that can be killed: each job has a deadline, a memory limit and, if its worker dies, a second try.

One thread of this process (`Pool`) hands jobs to workers and watches their deadlines. A deadline is CPU time of the
worker, so that other load changes no verdict while a worker gets a fifth of a core. The clock ends one that waits.
The workers are forked from a jax-free process (``fr3e_jax.rewards.zygote``), which takes milliseconds. Why not pebble:
docs/users/code_execution.md has the figures.

    pool (this process) --commands--> zygote --fork--> workers
         \\__________requests, answers (one socket each)____/
"""

from __future__ import annotations

import atexit
import os
import pickle
import selectors
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fr3e_jax.configuration.schema import RewardsConfig
from fr3e_jax.rewards.workers import LOAD_SECONDS, OWN, QueuedJob, Reply, Worker, Workers, ZygoteGone
from fr3e_jax.verdict import Job

FAILED_STARTS = 3  # workers in a row that died before their first answer: the fault is in all of them
MAX_WORKERS = 16
WALL_CLOCK_FACTOR = 5.0  # a worker is killed after so many times its deadline on the clock, even if it waits
JOBS_PER_WORKER = 1000  # then a worker is replaced


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(setting: int) -> int:
    """The number of workers: ``rewards.workers``, or for 0 one per CPU core that this process may use, at most 16."""
    return setting or min(usable_cores(), MAX_WORKERS)


class Pool:
    """Worker processes and their jobs; ``submit`` never waits, replies come on the pool's own thread.

    Args:
      settings: number of workers, deadline, memory, recycling.
      functions: ``Job.function`` values to be loaded before the first job.
    """

    def __init__(self, settings: RewardsConfig, functions: Iterable[str] = ()):
        self._settings = settings
        self._limit = worker_count(settings.workers)
        self._workers = Workers(settings.memory_mb, tuple(functions))
        self._queue: deque[QueuedJob] = deque()
        self._undelivered: set[QueuedJob] = set()
        self._running: list[Worker] = []
        self._broken: dict[str, str] = {}
        self._failed_starts = 0
        # Of the queue, the undelivered and _closed. Reentrant: the garbage collector may call close() at any point.
        self._lock = threading.RLock()
        self._closed = False
        self._end_reason = "the worker pool was closed; a job before or after that cannot be done"
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="fr3e-grading", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(self, job: Job, deliver: Callable[[Reply], None]) -> None:
        """Queue a job; ``deliver`` gets its reply, on another thread, and must neither wait nor raise.

        Raises:
          TypeError: the arguments of the job cannot be pickled.
          RuntimeError: the pool is closed.
        """
        deadline = job.deadline or self._settings.deadline_seconds
        try:
            payload = pickle.dumps(("run", job.function, job.arguments, deadline), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise TypeError(
                f"the arguments of a job of {job.function} cannot be sent to a worker: {error}; expected arguments "
                "that can be pickled: pass plain values (str, int, tuple, dict)"
            ) from error
        self.enqueue(QueuedJob(job.function, payload, deadline, deliver))

    def enqueue(self, task: QueuedJob) -> None:
        """Queue a task and wake the pool's thread."""
        with self._lock:
            if self._closed:
                raise RuntimeError(self._end_reason)
            self._queue.append(task)
            self._undelivered.add(task)
            if len(self._queue) == 1:
                self._wake.send(b"\0")

    def close(self) -> None:
        """Kill all workers and wait until they are gone; jobs that are not done get the reply "broken"."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._wake.send(b"\0")
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)
        atexit.unregister(self.close)

    def _serve(self) -> None:
        try:
            self._workers.start()
            while not self._closed:
                self._turn()
        except ZygoteGone as gone:
            self._end_reason = str(gone)
        except Exception:
            self._end_reason = f"the worker pool stopped, which is a bug in it:\n{traceback.format_exc()}"
        finally:
            self._end()

    def _turn(self) -> None:
        """Read answers, then look at deadlines (an answer that has come is never late), then hand out tasks."""
        for ready, events in self._selector.select(self._seconds_until_next()):
            if ready.fileobj is self._woken:
                self._woken.recv(4096)
            elif ready.data in self._running:
                self._exchange(ready.data, events)
        now = time.monotonic()
        for worker in [worker for worker in self._running if worker.busy and worker.is_late(now)]:
            self._lose(worker, late=True)
        self._hand_out()

    def _seconds_until_next(self) -> float | None:
        """Seconds until a worker may be late, or slow while tasks wait for its place; None: no worker is busy."""
        now = time.monotonic()
        busy = [worker for worker in self._running if worker.busy]
        times = [min(worker.look_at, worker.ends) for worker in busy]
        if self._queue:
            times += [worker.slow_from for worker in busy if worker.slow_from > now]
        return max(0.0, min(times) - now) if times else None

    def _exchange(self, worker: Worker, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            worker.flush()
            self._watch(worker)
        if events & selectors.EVENT_READ:
            answers, alive = worker.read()
            for answer in answers:
                alive = self._take(worker, answer) and alive
            if not alive and worker in self._running:
                self._lose(worker, late=worker.busy and worker.is_late(time.monotonic()))

    def _take(self, worker: Worker, answer: dict[str, Any]) -> bool:
        """Take an answer to a check or to the worker's task; return whether it was asked for."""
        if answer["kind"] == "started":
            worker.pid, earlier_pid = answer["pid"], worker.pid
            return not earlier_pid
        if worker.checking is not None:
            self._after_check(worker, answer)
        elif worker.task is not None and answer["kind"] != "ready":
            self._failed_starts = 0
            task = worker.finished()
            if answer.pop("retire", False) or worker.jobs >= JOBS_PER_WORKER:
                self._dismiss(worker)
            self._deliver(task, Reply(**answer))
        else:
            return False
        return True

    def _check(self, worker: Worker, function: str) -> None:
        """Have a worker load a function and run its canaries."""
        worker.checking = function
        self._request(worker, pickle.dumps(("check", function)), LOAD_SECONDS)

    def _after_check(self, worker: Worker, answer: dict[str, Any]) -> None:
        function, worker.checking = worker.checking, None
        if answer["kind"] == "ready":
            worker.checked.add(function)
            if answer.get("threads") == 1:
                self._workers.preload(function)
            if worker.task is not None:
                self._start(worker, worker.task)
            return
        self._give_up_on(function, answer.get("text", ""))
        self._dismiss_and_requeue(worker)

    def _start(self, worker: Worker, task: QueuedJob) -> None:
        """Take the next step towards a worker's task: load and check the function, or run the task."""
        worker.task = task
        if task.function not in worker.checked:
            self._check(worker, task.function)
        elif task.payload:
            self._request(worker, task.payload, task.deadline)
        else:
            worker.task = None
            self._deliver(task, Reply("verdict"))

    def _request(self, worker: Worker, message: bytes, seconds: float) -> None:
        worker.request(message, seconds, seconds * WALL_CLOCK_FACTOR)
        self._watch(worker)

    def _watch(self, worker: Worker) -> None:
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        if self._selector.get_key(worker.sock).events != interest:
            self._selector.modify(worker.sock, interest, worker)

    def _hand_out(self) -> None:
        """Give queued tasks to free workers."""
        while (task := self._next_task()) is not None:
            if task.function in self._broken:
                self._deliver(task, Reply("broken", text=self._broken[task.function]))
            elif (worker := self._free_worker(task)) is not None:
                self._start(worker, task)
            else:
                self._put_first(task)
                return

    def _deliver(self, task: QueuedJob, reply: Reply) -> None:
        with self._lock:
            self._undelivered.discard(task)
        task.deliver(reply)

    def _next_task(self) -> QueuedJob | None:
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def _put_first(self, task: QueuedJob) -> None:
        with self._lock:
            self._queue.appendleft(task)

    def _free_worker(self, task: QueuedJob) -> Worker | None:
        """An idle worker, or a new one; always a new one for a task whose worker died. None if all are busy.

        Next to each slow worker, which hangs more likely than not, another one may run: other tasks do not wait.
        """
        now = time.monotonic()
        if sum(worker.busy and now < worker.slow_from for worker in self._running) >= self._limit:
            return None
        idle = [worker for worker in self._running if not worker.busy]
        if idle and not task.deaths:
            return max(idle, key=lambda worker: task.function in worker.checked)
        if idle and len(self._running) >= 2 * self._limit:
            self._dismiss(idle[0])
        return self._hire(task.function) if len(self._running) < 2 * self._limit else None

    def _hire(self, function: str) -> Worker:
        if function.startswith(OWN):
            self._workers.preload(function)  # once before the fork, not in each worker after it
        worker = self._workers.hire()
        self._running.append(worker)
        self._selector.register(worker.sock, selectors.EVENT_READ, worker)
        return worker

    def _dismiss(self, worker: Worker) -> None:
        self._running.remove(worker)
        self._selector.unregister(worker.sock)
        self._workers.dismiss(worker)

    def _dismiss_and_requeue(self, worker: Worker) -> None:
        """Dismiss a worker; its task goes to another one, before all others."""
        self._dismiss(worker)
        if worker.task is not None:
            self._put_first(worker.task)

    def _lose(self, worker: Worker, *, late: bool) -> None:
        """Handle a worker that is past its deadline, or dead."""
        if worker.checking is not None:
            self._lose_unready(worker, late)
        elif worker.task is None:
            self._dismiss(worker)
        elif late or worker.task.deaths:
            self._dismiss(worker)
            self._deliver(worker.task, Reply("timeout" if late else "worker_died"))
        else:
            worker.task.deaths += 1
            self._dismiss_and_requeue(worker)

    def _lose_unready(self, worker: Worker, late: bool) -> None:
        self._failed_starts += 1
        if late or self._failed_starts >= FAILED_STARTS:
            clock = LOAD_SECONDS * WALL_CLOCK_FACTOR
            how = f"was not ready after {LOAD_SECONDS:.0f} s of CPU time or {clock:.0f} s" if late else "died"
            what = f"a worker {how} while it imported this and ran its canaries, {self._failed_starts} in a row"
            self._give_up_on(worker.checking, f"{what}; the process it was forked from: {self._workers.complaint()}")
        self._dismiss_and_requeue(worker)

    def _give_up_on(self, function: str, why: str) -> None:
        self._failed_starts = 0
        self._broken[function] = f"no worker can run the verifier {function}: {why}"

    def _end(self) -> None:
        with self._lock:
            self._closed = True
            tasks = list(self._undelivered)
        for worker in list(self._running):
            self._dismiss(worker)
        self._workers.close()
        self._selector.close()
        self._woken.close()
        self._wake.close()
        for task in tasks:
            task.deliver(Reply("broken", text=self._end_reason))
