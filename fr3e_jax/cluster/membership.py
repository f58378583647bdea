"""Being one process of several: joining at the start, leaving together at the end, last words when that fails.

`jax.distributed` ends all processes when one is lost: its service notices a silent process after
``runtime.heartbeat_seconds``, a lost process 0 at once, and aborts the others. An aborted process cannot speak, so a
small companion process does it, which holds the reading end of a pipe.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax

from fr3e_jax.cluster.discovery import COORDINATOR, Cluster, own_cluster
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import Config

# Reads lines until the pipe ends, which it does when this process does; the last line is said unless it is empty. It
# outlives the signals that are sent to the whole group of processes.
_COMPANION = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
last = b""
for last in sys.stdin.buffer:
    pass
if last.strip():
    os.write(2, b"fr3e: " + last)
"""


class LastWords:
    """What is printed to stderr should this process end without `withdraw`: aborted, killed, out of memory."""

    def __init__(self) -> None:
        self._companion: Any = None  # a subprocess.Popen with a pipe as its standard input

    def start(self) -> None:
        self._companion = subprocess.Popen([sys.executable, "-I", "-S", "-c", _COMPANION], stdin=subprocess.PIPE)

    def set(self, text: str) -> None:
        """Replaces the text; one line. Nothing without `start`."""
        if self._companion is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed: then nobody speaks
                self._companion.stdin.write(text.encode() + b"\n")
                self._companion.stdin.flush()

    def withdraw(self) -> None:
        """An orderly end: nothing is to be said."""
        if self._companion is not None:
            self.set("")
            with contextlib.suppress(BrokenPipeError):
                self._companion.stdin.close()
            self._companion.wait()
            self._companion = None


last_words = LastWords()
_GRACE_SECONDS = 5


def across_processes(verb: Callable[..., int]) -> Callable[..., int]:
    """A verb's function ``(config, ...) -> exit code`` that joins the other processes first and leaves with them."""

    @functools.wraps(verb)
    def run(config: Config, *arguments: Any, **options: Any) -> int:
        cluster = own_cluster() if config.runtime.processes == "auto" else None
        if cluster is None or jax.distributed.is_initialized():
            return verb(config, *arguments, **options)
        _join(config, cluster)
        if not jax.distributed.is_initialized():
            return verb(config, *arguments, **options)
        with _leaving_together():
            return verb(config, *arguments, **options)

    return run


def _join(config: Config, cluster: Cluster) -> None:
    """Finds the others; they wait for one another for ``runtime.join_seconds``.

    Raises:
      ConfigError: they did not all come.
    """
    r = config.runtime
    known = None not in (cluster.coordinator, cluster.count, cluster.index)
    last_words.start()
    last_words.set(
        f"this process could not join the others within runtime.join_seconds={r.join_seconds}; check that all "
        f"were started, that they can reach {cluster.coordinator or 'process 0'}, and that each has its own number"
    )
    try:
        jax.distributed.initialize(
            coordinator_address=cluster.coordinator,
            num_processes=cluster.count,
            process_id=cluster.index,
            cluster_detection_method="deactivate" if known and not cluster.manager else None,
            initialization_timeout=r.join_seconds,
            heartbeat_timeout_seconds=r.heartbeat_seconds,
            shutdown_timeout_seconds=r.heartbeat_seconds,
        )
    except (RuntimeError, ValueError, OSError) as error:  # RuntimeError: jax's own errors
        last_words.withdraw()
        where = f"{COORDINATOR}={cluster.coordinator}" if cluster.coordinator else f"the processes of {cluster.manager}"
        raise ConfigError(f"could not join {where}: {type(error).__name__}: {error}") from error
    if not known and jax.process_count() == 1:  # a TPU VM without other workers
        last_words.withdraw()
        jax.distributed.shutdown()
        return
    # Where these are known, nothing here starts jax's backend, which the session sets up first.
    number = f"process {cluster.index} of {cluster.count}" if known else f"process {jax.process_index()}"
    last_words.set(farewell(number, "nothing of this run was saved yet: start it again"))


def farewell(number: str, advice: str) -> str:
    """What the process of this number says if it ends because the processes were torn apart."""
    return (
        f"{number} was ended: itself, another process or a machine was "
        f"lost, and the rest cannot go on alone (the lines above and the logs of the others say which); {advice}"
    )


@contextlib.contextmanager
def _leaving_together() -> Iterator[None]:
    """All meet once more at the end. After an error nobody is waited for, since the others may wait for this process.

    They are then ended by `jax.distributed`, which misses this one.
    """
    try:
        yield
    except BaseException as error:
        _print(error)
        if not isinstance(error, jax.errors.JaxRuntimeError):  # that is as a rule a transfer from or to a lost process
            last_words.withdraw()
        if jax.process_index() == 0:
            time.sleep(_GRACE_SECONDS)  # without process 0 the others end at once: those with the same error print it
        # Whatever else Python would do at its end waits for devices that others have left.
        os._exit(2 if isinstance(error, ConfigError) else 1)
    last_words.withdraw()
    with contextlib.suppress(RuntimeError):  # the others did not come: they have said why
        jax.distributed.shutdown()


def _print(error: BaseException) -> None:
    if isinstance(error, ConfigError):
        print(f"fr3e: error: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
