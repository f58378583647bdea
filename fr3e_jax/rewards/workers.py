"""Worker processes as the pool sees them, with their tasks and replies.

Start the zygote, have workers forked, talk to each over its socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fr3e_jax.rewards import wire
from fr3e_jax.rewards.child_processes import cpu_seconds
from fr3e_jax.rewards.job_runner import ANSWER_LIMIT
from fr3e_jax.rewards.zygote import COMMAND, FORK, KILL, PRELOAD

KINDS = ("started", "ready", "verdict", "raised", "unusable", "broken")
BOOT = """
import json, sys
path, *arguments = json.loads(sys.argv[1])
sys.path[:] = path
from fr3e_jax.rewards.zygote import main
main(*arguments)
"""
# One thread each, as there are as many workers as cores. No accelerator: it belongs to the run. Equal hashes, so that
# loops over sets take the same path in every worker and every run.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONHASHSEED": "0",
}
LOAD_SECONDS = 120.0  # of CPU time, to import a verifier and run its canaries
OWN = "fr3e_jax."  # functions of this package can be imported before the first worker has tried them
SLOW_SHARE = 0.25  # of its deadline: more than nearly every answer takes
SHORTEST_LOOK = 0.01  # seconds between two looks at a worker's CPU time, which the kernel counts in such ticks


@dataclass(frozen=True)
class Reply:
    """The result of a job.

    ``verdict``: ``reward`` and ``outcome`` as the function returned them, not yet checked. ``raised``: the function
    raised, ``text`` is its traceback. ``unusable``: it returned neither a number nor a ``Verdict`` but ``text``.
    ``timeout``: it was not done at its deadline. ``worker_died``: twice. ``broken``: no worker can run the function;
    ``text`` says why.
    """

    kind: Literal["verdict", "raised", "unusable", "timeout", "worker_died", "broken"]
    reward: float = 0.0
    outcome: str | None = None
    text: str = ""


@dataclass(eq=False)
class QueuedJob:
    """A job in the pool: ``payload`` is the pickled request."""

    function: str
    payload: bytes
    deadline: float
    deliver: Callable[[Reply], None]
    deaths: int = 0


def load_only(function: str, deliver: Callable[[Reply], None]) -> QueuedJob:
    """A task that imports a function, checks its canaries, and does nothing else; its reply is a verdict of 0."""
    return QueuedJob(function, b"", LOAD_SECONDS, deliver)


class ZygoteGone(RuntimeError):
    """The process that forks workers ended; the message says what it wrote last."""


@dataclass(eq=False)
class Worker:
    """One worker: its task, its deadlines, and the bytes still to be sent to it.

    Attributes:
      task: the job it has, or None; ``checking``: the function it loads and checks before that, or None.
      pid: its process id; 0 until it has told it.
      slow_from: ``time.monotonic()`` from which on it counts as slow, and another worker may start beside it.
      look_at: when to look at its CPU time next; before that it cannot have used up what it may.
      ends: when it is killed even if it computes nothing.
      checked: functions it has loaded and whose canaries it has passed.
    """

    serial: int
    sock: socket.socket
    unsent: bytes = b""
    task: QueuedJob | None = None
    checking: str | None = None
    pid: int = 0
    slow_from: float = 0.0
    look_at: float = 0.0
    ends: float = 0.0
    jobs: int = 0
    checked: set[str] = field(default_factory=set)
    _cpu_end: float = 0.0  # of its own CPU time
    _reader: wire.Reader = field(default_factory=lambda: wire.Reader(ANSWER_LIMIT))

    @property
    def busy(self) -> bool:
        return self.task is not None or self.checking is not None

    def finished(self) -> QueuedJob:
        """Free the worker and return the task that it has answered."""
        task, self.task = self.task, None
        self.jobs += 1
        return task

    def request(self, message: bytes, seconds: float, clock_seconds: float) -> None:
        """Start to send a request, to be answered in so many seconds of CPU time and so many on the clock."""
        now = time.monotonic()
        self.slow_from, self.look_at, self.ends = now + SLOW_SHARE * seconds, now + seconds, now + clock_seconds
        self._cpu_end = (cpu_seconds(self.pid) or 0.0 if self.pid else 0.0) + seconds
        self.unsent = wire.framed(message)
        self.flush()

    def is_late(self, now: float) -> bool:
        """Return whether it has used up its CPU time or its time on the clock."""
        if now < min(self.look_at, self.ends):
            return False
        used = cpu_seconds(self.pid) if self.pid else 0.0
        if used is None:  # gone since: the kernel ends a worker at twice its CPU time
            return True
        left = self._cpu_end - used
        self.look_at = now + max(left, SHORTEST_LOOK)
        return left <= 0 or now >= self.ends

    def flush(self) -> None:
        """Send as much as the socket takes now. Reading shows whether the worker is gone."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.unsent = self.unsent[self.sock.send(self.unsent) :]

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """(answers, whether more may come); no more come from a worker that is gone or talks nonsense."""
        try:
            data = self.sock.recv(1 << 16)
            return [_parsed(message) for message in self._reader.feed(data)], bool(data)
        except BlockingIOError:
            return [], True
        except (OSError, ValueError, RecursionError):
            return [], False


def _parsed(message: bytes) -> dict[str, Any]:
    answer = json.loads(message)
    expected = {"kind": str, "pid": int, "reward": float, "outcome": str | None, "text": str}
    if not isinstance(answer, dict) or answer.get("kind") not in KINDS:
        raise ValueError("not an answer of a worker")
    expected |= {"retire": bool, "threads": int}
    if not all(name in expected and isinstance(value, expected[name]) for name, value in answer.items()):
        raise ValueError("an answer with fields that no worker sends")
    return answer


class Workers:
    """The zygote and the workers forked from it, for one thread, which must live as long as the workers."""

    def __init__(self, memory_mb: int, functions: Sequence[str]):
        self._memory_mb = memory_mb
        self._preloaded = [function for function in functions if function.startswith(OWN)]  # others: see preload
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._complaints: Any = None
        self._scratch = ""
        self._serial = 0

    def start(self) -> None:
        """Start the zygote without waiting for it. It dies with this thread, and when its socket closes."""
        ours, theirs = socket.socketpair()
        # A number above the standard descriptors: the child opens those anew where ours are closed.
        control = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)
        path = [os.path.abspath(entry) if entry == "" else entry for entry in sys.path]
        self._scratch = tempfile.mkdtemp(prefix="fr3e-grading-")
        arguments = json.dumps([path, control, os.getpid(), self._memory_mb, self._scratch, self._preloaded])
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                pass_fds=[control],
                env=os.environ | ENVIRONMENT,
                start_new_session=True,  # Ctrl-C is for this process, which then closes the pool
            )
        except OSError:
            complaints.close()
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(control)
        self._control, self._complaints = ours, complaints

    def hire(self) -> Worker:
        """A new worker, forked while the caller goes on.

        Raises:
          ZygoteGone: the zygote ended by itself. One that was killed from outside is started anew.
        """
        if self._process is None or (self._process.poll() or 0) < 0:
            self.close()
            self.start()
        self._serial += 1
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [COMMAND.pack(FORK, self._serial)], [theirs.fileno()])
        except ConnectionError as error:
            ours.close()
            raise ZygoteGone(f"the process that starts grading workers ended. {self.complaint()}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        return Worker(self._serial, ours)

    def preload(self, function: str) -> None:
        """Import a function in the zygote, so that the next workers have it at once.

        Only for the package's own functions, and those whose import in a worker started no threads: forks lose them.
        """
        if function in self._preloaded:
            return
        self._preloaded.append(function)
        name = function.encode()
        with contextlib.suppress(ConnectionError):
            self._control.sendall(COMMAND.pack(PRELOAD, len(name)) + name)

    def dismiss(self, worker: Worker) -> None:
        """Kill a worker and all that it has started."""
        worker.sock.close()
        if self._control is None:  # a zygote that died could not be started anew; its workers died with it
            return
        with contextlib.suppress(ConnectionError):
            self._control.send(COMMAND.pack(KILL, worker.serial))

    def complaint(self) -> str:
        """The end of the zygote's standard error, as a sentence."""
        if self._complaints is None:
            return ""
        size = self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, size - 4000))
        text = self._complaints.read().decode(errors="replace").strip()
        return f"It said: {text}" if text else "It said nothing."

    def close(self) -> None:
        """End the zygote, which ends all workers first, and wait for it."""
        if self._process is None:
            return
        self._control.close()
        self._process.terminate()  # for the time before it reads its socket
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # workers have asked the kernel to be killed with it
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._complaints.close()
        shutil.rmtree(self._scratch, ignore_errors=True)  # the zygote has done so, unless it was killed
        self._process = self._control = self._complaints = None
