"""Worker processes that can be killed: each job has a deadline, a memory limit and, if its worker dies, a second try.

One thread of this process (`Pool`) hands jobs to workers and watches their deadlines; the workers are forked from a
jax-free process (``fr3e_jax.rewards.zygote``), which takes milliseconds. Why not pebble: docs/users/code_execution.md
has the figures.

    pool (this process) --commands--> zygote --fork--> workers
         \\__________requests, answers (one socket each)____/
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import selectors
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from fr3e_jax.configuration.schema import RewardsConfig
from fr3e_jax.rewards.crew import OWN, Crew, WorkerProcess, ZygoteGone
from fr3e_jax.rewards.requests import LOAD_SECONDS, Reply, Task
from fr3e_jax.rewards.verdict import Job

logger = logging.getLogger(__name__)

FAILED_STARTS = 3  # workers in a row that died before their first answer: there is something wrong with all of them
MAX_WORKERS = 16


def worker_count(setting: int) -> int:
    """The number of workers: ``rewards.workers``, or for 0 one per CPU core that this process may use, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return setting or min(cores, MAX_WORKERS)


class Pool:
    """Runs jobs in worker processes; ``submit`` never waits, replies come on the pool's own thread.

    Args:
      settings: number of workers, deadline, memory, recycling.
      functions: ``Job.function`` values to be loaded before the first job.
      retract: called with the keys of verdicts that a worker gave between its last good canary and one that failed.
    """

    def __init__(
        self,
        settings: RewardsConfig,
        functions: Iterable[str] = (),
        retract: Callable[[Sequence[Hashable]], None] = lambda keys: None,
    ):
        self._settings, self._retract = settings, retract
        self._limit = worker_count(settings.workers)
        self._crew = Crew(settings.memory_mb, tuple(functions))
        self._queue: deque[Task] = deque()
        self._undelivered: set[Task] = set()
        self._workers: list[WorkerProcess] = []
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

    def submit(self, job: Job, deliver: Callable[[Reply], None], key: Hashable = None) -> None:
        """Queues a job; ``deliver`` gets its reply, on another thread, and must neither wait nor raise.

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
        self.enqueue(Task(job.function, payload, deadline, deliver, key))

    def enqueue(self, task: Task) -> None:
        """Queues a task and wakes the pool's thread."""
        with self._lock:
            if self._closed:
                raise RuntimeError(self._end_reason)
            self._queue.append(task)
            self._undelivered.add(task)
            if len(self._queue) == 1:
                self._wake.send(b"\0")

    def close(self) -> None:
        """Kills all workers and waits until they are gone; jobs not yet done are replied to as broken."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._wake.send(b"\0")
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)
        atexit.unregister(self.close)

    def _serve(self) -> None:
        try:
            self._crew.start()
            while not self._closed:
                self._turn()
        except ZygoteGone as gone:
            self._end_reason = str(gone)
        except Exception:
            self._end_reason = f"the worker pool stopped, which is a bug in it:\n{traceback.format_exc()}"
        finally:
            self._end()

    def _turn(self) -> None:
        """Reads what has come, then looks at deadlines (an answer that is there is never late), then hands out."""
        for ready, events in self._selector.select(self._seconds_until_next()):
            if ready.fileobj is self._woken:
                self._woken.recv(4096)
            elif ready.data in self._workers:
                self._exchange(ready.data, events)
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker.busy and now >= worker.ends]:
            self._lose(worker, late=True)
        self._hand_out()

    def _seconds_until_next(self) -> float | None:
        """Until a worker is late, or slow while others could use its place; None: nothing to wait for."""
        now = time.monotonic()
        busy = [worker for worker in self._workers if worker.busy]
        times = [worker.ends for worker in busy]
        if self._queue:
            times += [worker.slow_from for worker in busy if worker.slow_from > now]
        return max(0.0, min(times) - now) if times else None

    def _exchange(self, worker: WorkerProcess, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            worker.flush()
            self._watch(worker)
        if events & selectors.EVENT_READ:
            answers, alive = worker.read()
            for answer in answers:
                alive = self._take(worker, answer) and alive
            if not alive and worker in self._workers:
                self._lose(worker, late=worker.busy and time.monotonic() >= worker.ends)

    def _take(self, worker: WorkerProcess, answer: dict[str, Any]) -> bool:
        """An answer: to a load or check, or to the worker's task. False for one that nobody asked for."""
        if worker.checking is not None:
            self._after_check(worker, answer)
        elif worker.task is not None and answer["kind"] != "ready":
            self._failed_starts = 0
            task = worker.finished()
            if answer.pop("retire", False):
                self._dismiss(worker)
            elif worker.jobs >= self._settings.jobs_per_worker:
                worker.retiring = True
                self._check(worker, task.function)
            self._deliver(task, Reply(**answer))
        else:
            return False
        return True

    def _check(self, worker: WorkerProcess, function: str) -> None:
        """Has a worker load a function, if it has not, and run its canaries."""
        worker.checking = function
        self._request(worker, pickle.dumps(("check", function)), LOAD_SECONDS)

    def _after_check(self, worker: WorkerProcess, answer: dict[str, Any]) -> None:
        function, worker.checking = worker.checking, None
        if answer["kind"] == "ready":
            worker.passed(function)
            if answer.get("threads") == 1:
                self._crew.preload(function)
            if worker.retiring:
                self._dismiss(worker)
            elif worker.task is not None:
                self._start(worker, worker.task)
            return
        why = answer.get("text", "")
        if function in worker.checked:
            count, kept = len(worker.suspects), "its verdicts since the last good one leave the cache"
            logger.warning("a grading worker failed its canary after %d answers; %s:\n%s", count, kept, why)
            self._retract(worker.suspects)
        else:
            self._give_up_on(function, why)
        self._dismiss_and_requeue(worker)

    def _start(self, worker: WorkerProcess, task: Task) -> None:
        """The next step of a worker towards its task: load or check the function, or run the task."""
        worker.task = task
        if worker.needs_check(task.function, self._settings.canary_every):
            self._check(worker, task.function)
        elif task.payload:
            self._request(worker, task.payload, task.deadline)
        else:
            worker.task = None
            self._deliver(task, Reply("verdict"))

    def _request(self, worker: WorkerProcess, message: bytes, seconds: float) -> None:
        worker.request(message, seconds)
        self._watch(worker)

    def _watch(self, worker: WorkerProcess) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        if self._selector.get_key(worker.sock).events != wanted:
            self._selector.modify(worker.sock, wanted, worker)

    def _hand_out(self) -> None:
        """Gives queued tasks to free workers."""
        while (task := self._next_task()) is not None:
            if task.function in self._broken:
                self._deliver(task, Reply("broken", text=self._broken[task.function]))
            elif (worker := self._free_worker(task)) is not None:
                self._start(worker, task)
            else:
                self._put_first(task)
                return

    def _deliver(self, task: Task, reply: Reply) -> None:
        with self._lock:
            self._undelivered.discard(task)
        task.deliver(reply)

    def _next_task(self) -> Task | None:
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def _put_first(self, task: Task) -> None:
        with self._lock:
            self._queue.appendleft(task)

    def _free_worker(self, task: Task) -> WorkerProcess | None:
        """An idle worker, or a new one; always a new one for a task whose worker died. None if all are busy.

        Beside each slow worker, which hangs more likely than not, another one may run: others do not wait for it.
        """
        now = time.monotonic()
        if sum(worker.busy and now < worker.slow_from for worker in self._workers) >= self._limit:
            return None
        idle = [worker for worker in self._workers if not worker.busy]
        if idle and not task.deaths:
            return max(idle, key=lambda worker: task.function in worker.checked)
        if idle and len(self._workers) >= 2 * self._limit:
            self._dismiss(idle[0])
        return self._hire(task.function) if len(self._workers) < 2 * self._limit else None

    def _hire(self, function: str) -> WorkerProcess:
        if function.startswith(OWN):
            self._crew.preload(function)  # once before the fork, not in each worker after it
        worker = self._crew.hire()
        self._workers.append(worker)
        self._selector.register(worker.sock, selectors.EVENT_READ, worker)
        return worker

    def _dismiss(self, worker: WorkerProcess) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker.sock)
        self._crew.dismiss(worker)

    def _dismiss_and_requeue(self, worker: WorkerProcess) -> None:
        """What the worker had still to do goes to another one, before everything else."""
        self._dismiss(worker)
        if worker.task is not None:
            self._put_first(worker.task)

    def _lose(self, worker: WorkerProcess, *, late: bool) -> None:
        """A worker that is past its deadline, or dead."""
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

    def _lose_unready(self, worker: WorkerProcess, late: bool) -> None:
        self._failed_starts += 1
        if late or self._failed_starts >= FAILED_STARTS:
            how = f"was not ready after {LOAD_SECONDS:.0f} s" if late else "died"
            what = f"a worker {how} while it imported this and ran its canaries, {self._failed_starts} in a row"
            self._give_up_on(worker.checking, f"{what}; the process it was forked from: {self._crew.complaint()}")
        self._dismiss_and_requeue(worker)

    def _give_up_on(self, function: str, why: str) -> None:
        self._failed_starts = 0
        self._broken[function] = f"no worker can run the verifier {function}: {why}"

    def _end(self) -> None:
        with self._lock:
            self._closed = True
            tasks = list(self._undelivered)
        for worker in list(self._workers):
            self._dismiss(worker)
        self._crew.close()
        self._selector.close()
        self._woken.close()
        self._wake.close()
        for task in tasks:
            task.deliver(Reply("broken", text=self._end_reason))
