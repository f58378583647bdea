"""Membership in a group of processes: joining at the start, leaving together at the end, last words on failure.

`jax.distributed` ends all processes when one is lost. Its service notices a silent process after
``runtime.heartbeat_seconds`` and a lost process 0 at once; then it aborts the others. An aborted process cannot print,
so a small companion process prints for it; the companion holds the reading end of a pipe.
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

# The companion reads lines until the pipe ends, together with this process. It prints the last line unless that line is
# empty. It ignores signals, since they are sent to the whole group of processes.
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
    """A line that goes to stderr if this process ends without `withdraw`: aborted, killed, out of memory."""

    def __init__(self) -> None:
        self._companion: Any = None  # a subprocess.Popen with a pipe as its standard input

    def start(self) -> None:
        self._companion = subprocess.Popen([sys.executable, "-I", "-S", "-c", _COMPANION], stdin=subprocess.PIPE)

    def set(self, text: str) -> None:
        """Replace the text, one line; without `start`, do nothing."""
        if self._companion is not None:
            with contextlib.suppress(BrokenPipeError):  # the companion was killed: nothing will be printed
                self._companion.stdin.write(text.encode() + b"\n")
                self._companion.stdin.flush()

    def withdraw(self) -> None:
        """End the companion in silence, at an orderly end."""
        if self._companion is not None:
            self.set("")
            with contextlib.suppress(BrokenPipeError):
                self._companion.stdin.close()
            self._companion.wait()
            self._companion = None


last_words = LastWords()
_GRACE_SECONDS = 5


def across_processes(verb: Callable[..., int]) -> Callable[..., int]:
    """Wrap a verb, ``(config, ...) -> exit code``, so that it joins the other processes first and leaves with them."""

    @functools.wraps(verb)
    def run(config: Config, *arguments: Any, **options: Any) -> int:
        cluster = own_cluster()
        if cluster is None or jax.distributed.is_initialized():
            return verb(config, *arguments, **options)
        _join(config, cluster)
        if not jax.distributed.is_initialized():
            return verb(config, *arguments, **options)
        with _leaving_together():
            return verb(config, *arguments, **options)

    return run


def _join(config: Config, cluster: Cluster) -> None:
    """Join the other processes; all wait for one another for three times ``runtime.heartbeat_seconds``.

    Raises:
      ConfigError: a process did not come.
    """
    silence = config.runtime.heartbeat_seconds
    patience = 3 * silence
    is_complete = None not in (cluster.coordinator, cluster.count, cluster.index)
    last_words.start()
    last_words.set(
        f"this process could not join the others within {patience} s (3 x runtime.heartbeat_seconds={silence}); check "
        f"that all were started, that they can reach {cluster.coordinator or 'process 0'}, and that each has its own "
        "number"
    )
    try:
        jax.distributed.initialize(
            coordinator_address=cluster.coordinator,
            num_processes=cluster.count,
            process_id=cluster.index,
            cluster_detection_method="deactivate" if is_complete and not cluster.manager else None,
            initialization_timeout=patience,
            heartbeat_timeout_seconds=silence,
            shutdown_timeout_seconds=silence,
        )
    except (RuntimeError, ValueError, OSError) as error:  # RuntimeError: jax's own errors
        last_words.withdraw()
        where = f"{COORDINATOR}={cluster.coordinator}" if cluster.coordinator else f"the processes of {cluster.manager}"
        raise ConfigError(f"could not join {where}: {type(error).__name__}: {error}") from error
    if not is_complete and jax.process_count() == 1:  # a TPU VM without other workers
        last_words.withdraw()
        jax.distributed.shutdown()
        return
    # `jax.process_index` starts jax's backend, which the session sets up first: a complete cluster does without it.
    name = f"process {cluster.index} of {cluster.count}" if is_complete else f"process {jax.process_index()}"
    last_words.set(farewell(name, "nothing of this run was saved yet: start it again"))


def farewell(name: str, advice: str) -> str:
    """Last words of the process of this name, for an end because one of the processes was lost."""
    return (
        f"{name} was ended: this process, another one or a machine was lost, and the others cannot go on alone "
        f"(the lines above and the logs of the others say which was lost); {advice}"
    )


@contextlib.contextmanager
def _leaving_together() -> Iterator[None]:
    """Meet the other processes once more at the end.

    After an error this process waits for nobody, since the others may be waiting for it. `jax.distributed` misses it
    and ends them.
    """
    try:
        yield
    except BaseException as error:
        _print(error)
        if not isinstance(error, jax.errors.JaxRuntimeError):  # which is usually a transfer to or from a lost process
            last_words.withdraw()
        if jax.process_index() == 0:
            time.sleep(_GRACE_SECONDS)  # the others end at once without process 0: let them print the same error first
        # An ordinary exit of Python would wait for devices that the other processes have left.
        os._exit(2 if isinstance(error, ConfigError) else 1)
    last_words.withdraw()
    with contextlib.suppress(RuntimeError):  # the others did not come, and have printed why
        jax.distributed.shutdown()


def _print(error: BaseException) -> None:
    if isinstance(error, ConfigError):
        print(f"fr3e: error: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
