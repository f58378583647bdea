"""Which of several processes write jax's compilation cache: on every host one does, so that each host finds it again.

Jax lets process 0 write alone. That fills a folder that all hosts share. But a host with a folder of its own would
compile everything at each start. So the processes find out who shares a folder with whom, and the first process of each
folder writes there. Some programs have a name of their own on each process, so each process writes them:

    on CPU, all programs: the compiler's options, which are part of the name, differ
    on TPU, programs for a part of the process's devices: the devices are part of the name
"""

from __future__ import annotations

import contextlib
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache, compiler

from fr3e_jax.stores.objects import is_remote

Gather = Callable[[Any], list[Any]]


def write_on_each_host(index: int, gather: Gather) -> None:
    """Let this process write to jax's compilation cache if it is the first of those that share its folder.

    Args:
      index: the number of this process, one of several.
      gather: JSON content of every process, in their order; all processes call this function together.
    """
    writer = _Writer()
    if index and hasattr(compiler, "_cache_write"):  # no part of jax's interface; without it, process 0 writes alone
        setattr(compiler, "_cache_write", writer)  # noqa: B010 (mypy knows the type of the function)
    writer.is_first = first_that_shares(jax.config.values["jax_compilation_cache_dir"] or "", index, gather) == index


def first_that_shares(cache: str, index: int, gather: Gather) -> int:
    """The number of the first process that sees the files which this one writes to ``cache``, a folder or an address.

    Each process makes a file there, and looks for those of the processes before it, by their names: a listing of a
    folder on the network may be older.
    """
    announced = gather([uuid.uuid4().hex, cache])
    if is_remote(cache) or not cache:
        return next(process for process, (_, other) in enumerate(announced) if other == cache)

    def token(process: int) -> Path:
        return Path(cache, f".shared_by_{announced[0][0]}_{process}")

    with contextlib.suppress(OSError):  # a folder that cannot be written: jax warns at its first program
        token(index).parent.mkdir(parents=True, exist_ok=True)
        token(index).touch()
    gather(None)  # all have made theirs
    first = next((process for process in range(index) if token(process).exists()), index)
    gather(None)  # all have looked
    with contextlib.suppress(OSError):
        token(index).unlink()
    return first


class _Writer:
    """Takes the place of jax's function that writes a compiled program to the cache, with the same arguments.

    ``is_first``: of the processes that share the folder; true until that is known, for the few programs before it.
    """

    is_first = True

    def __call__(
        self, key: str, seconds: float, name: str, backend: Any, executable: Any, callbacks: Sequence[Any] = ()
    ) -> None:
        too_quick = seconds < jax.config.values["jax_persistent_cache_min_compile_time_secs"]
        if callbacks or too_quick or not (self.is_first or _has_its_own_name(executable)):
            return
        try:
            compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))
        except Exception as error:
            if jax.config.values["jax_raise_persistent_cache_errors"]:
                raise
            warnings.warn(f"{name} was not written to the compilation cache: {error}", stacklevel=2)


def _has_its_own_name(executable: Any) -> bool:
    """Whether no other process looks for this program under the same name."""
    devices = executable.local_devices()
    platform = devices[0].platform
    return platform == "cpu" or (platform == "tpu" and len(devices) < jax.local_device_count())
