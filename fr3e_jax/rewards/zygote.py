"""The zygote, the process that workers are forked from: it has imported the grading functions, without jax or threads.

A worker that imported them itself would be ready after seconds; a fork of this process is ready after milliseconds. The
zygote is started by exec, so that it has nothing of the parent: no jax, no threads and locks, no ``__main__``. As the
parent of all workers it can kill them and all that they have started, without mistaking one process for another.

Commands are a letter and a number: F forks a worker of that number (its socket comes along), K kills it, P imports a
function whose name follows in so many bytes. All processes end when the socket closes, because the pool was closed or
its process is gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fr3e_jax.rewards import child_processes, job_runner

COMMAND = struct.Struct("!cI")
FORK, KILL, PRELOAD = b"F", b"K", b"P"


class Zygote:
    """The parent of the workers: it forks, kills and reaps them as the pool says."""

    def __init__(self, control: socket.socket, memory_mb: int, scratch: Path):
        self._control, self._memory_mb, self._scratch = control, memory_mb, scratch
        self._pids: dict[int, int] = {}  # by the number of the worker
        self._wake, self._woken = os.pipe()
        self._parent = os.getpid()
        self._stopped = False

    def serve(self) -> None:
        """Obey until the control socket closes or SIGTERM comes."""
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signal_number, frame: None)
        signal.signal(signal.SIGTERM, self._stop)
        while not self._stopped:
            ready, _, _ = select.select([self._control, self._wake], [], [])
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            if self._control in ready and not self._obey():
                break
        self._end()

    def _stop(self, signal_number: int, frame: object) -> None:
        self._stopped = True

    def _obey(self) -> bool:
        """Obey one command; return False if no more can come."""
        try:
            command, descriptors, _, _ = socket.recv_fds(self._control, COMMAND.size, 1)
        except ConnectionError:
            return False
        if len(command) < COMMAND.size:
            return False
        verb, argument = COMMAND.unpack(command)
        if verb == FORK and descriptors:
            with socket.socket(fileno=descriptors[0]) as sock:
                self._fork(argument, sock)
        elif verb == KILL and argument in self._pids:
            child_processes.kill_group(self._pids[argument])
        elif verb == PRELOAD:
            preload([self._control.recv(argument, socket.MSG_WAITALL).decode()])
        return True

    def _fork(self, worker: int, sock: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # the pool sees the worker's socket close, and tries a few times
            print(f"a worker could not be forked: {error}", file=sys.stderr, flush=True)
            return
        if pid:
            self._pids[worker] = pid
            return
        try:
            self._become_worker(sock)
        finally:
            os._exit(0)

    def _become_worker(self, sock: socket.socket) -> None:
        os.setsid()
        child_processes.die_with_parent(self._parent)
        child_processes.adopt_orphans()
        signal.set_wakeup_fd(-1)
        for signal_number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_DFL)
        for descriptor in (self._wake, self._woken):
            os.close(descriptor)
        self._control.close()
        os.dup2(1, 2)
        limit_memory(self._memory_mb)
        folder = self._scratch / str(os.getpid())
        folder.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        job_runner.serve(sock)

    def _reap(self) -> None:
        ended = set()
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                ended.add(pid)
        self._pids = {worker: pid for worker, pid in self._pids.items() if pid not in ended}
        if ended:
            child_processes.kill_children(keep=self._pids.values())  # the children of dead workers
        for pid in ended:
            shutil.rmtree(self._scratch / str(pid), ignore_errors=True)

    def _end(self) -> None:
        child_processes.kill_children()
        shutil.rmtree(self._scratch, ignore_errors=True)


def limit_memory(megabytes: int) -> None:
    """Forbid core files and more address space than this."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # there is a lower hard limit, or none on this platform
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


def used_memory_mb() -> int:
    """Address space of this process in MB; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() >> 20
    return 0


def preload(functions: Sequence[str]) -> None:
    """Import grading functions and run their canaries, which fills the caches of their parsers.

    Errors are ignored here: a worker meets them again, and reports them.
    """
    for spec in functions:
        with contextlib.suppress(BaseException):
            job_runner.check_canaries(job_runner.load_function(spec), spec)
    importlib.invalidate_caches()
    gc.collect()
    gc.freeze()  # forks share what is here already


def main(control: int, parent: int, memory_mb: int, scratch: str, functions: Sequence[str]) -> None:
    """Entry point.

    Args:
      control: descriptor of the control socket.
      parent: process id of the pool.
      memory_mb: address space of a worker.
      scratch: directory for the temporary files of workers, removed at the end.
      functions: to be imported before the first fork.
    """
    child_processes.die_with_parent(parent, signal.SIGTERM)  # not SIGKILL: the workers' descendants must end, too
    child_processes.adopt_orphans()
    preload(functions)
    least = used_memory_mb() + 64
    if memory_mb < least:
        sys.exit(f"rewards.memory_mb is {memory_mb}, but a worker needs {least} before its first answer; raise it")
    with socket.socket(fileno=control) as sock:
        Zygote(sock, memory_mb, Path(scratch)).serve()
