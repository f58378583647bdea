"""``fr3e compile``: the programs that a run will call, compiled into its cache before the run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from fr3e_jax.cluster.membership import across_processes
from fr3e_jax.cluster.processes import own_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import Config
from fr3e_jax.loop.rehearsal import Programs, expected, rehearse
from fr3e_jax.policy.rows import Rows, Trunks
from fr3e_jax.programs.decoder_state import DecodeState
from fr3e_jax.programs.program import keeps_executables
from fr3e_jax.programs.rehearsal import Call
from fr3e_jax.programs.train_programs import TrainRows
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.session.session import open_session


@dataclass(frozen=True)
class Compiled:
    """A program of the forecast. ``seconds``: wall, until it was there; None: it was only listed."""

    name: str
    sizes: str
    calls: int  # in the rehearsal
    seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        return vars(self)


class Shows(Protocol):
    """Shows what `compile_recipe` does, on the first of several processes."""

    def begins(self, programs: int) -> None:
        """So many programs are going to be compiled."""

    def one(self, compiled: Compiled) -> None:
        """A program is ready; called in one of the threads."""

    def all(self, compiled: Sequence[Compiled], cached: int | None) -> None:
        """All programs are ready, ``cached`` of them were in the cache; None: nothing was compiled."""


@across_processes
def compile_recipe(config: Config, steps: int, only_list: bool, shows: Shows) -> int:
    """``fr3e compile``: find the programs of a run's first steps, compile them unless ``only_list``; return 0.

    Each of several processes compiles them for its own devices.

    Raises:
      ConfigError: the recipe cannot be run, or there is no cache to compile into.
    """
    calls = forecast_programs(config, steps)
    first = own_processes().first
    if first and not only_list:
        shows.begins(len(calls))
    tell = shows.one if first else lambda compiled: None
    found, cached = (listed(calls), None) if only_list else compile_programs(calls, tell)
    if first:
        shows.all(found, cached)
    return 0


def forecast_programs(config: Config, steps: int) -> list[Call]:
    """The calls of the first ``steps`` steps of a run, in the order of their first appearance.

    Raises:
      ConfigError: the recipe cannot be run; see `open_session`.
    """
    session = open_session(config, keeps_routes=True)
    model = session.model
    programs = Programs(model.train_programs(config), model.critic_programs(config))
    return list(rehearse(session, expected(config, steps), programs).calls.values())


def compile_programs(
    calls: Sequence[Call], tell: Callable[[Compiled], None], threads: int | None = None
) -> tuple[list[Compiled], int]:
    """Compile every program, several at a time; return them, and how many were in the cache.

    Args:
      calls: of `forecast_programs`.
      tell: gets each program when it is ready, in one of the threads.
      threads: None: one for each processor.

    Raises:
      ConfigError: there is no cache to compile into.
    """
    if not jax.config.jax_compilation_cache_dir and not keeps_executables():
        raise ConfigError(
            "runtime.compilation_cache is empty, so that nothing would be kept; name a folder or an address "
            "that the run will use, too"
        )

    before = compilations()

    def one(call: Call) -> Compiled:
        start = time.perf_counter()
        if keeps_executables():
            call.program.prepare(call.key, call.args, call.keywords)
        else:
            call.program.lower(*call.args, **call.keywords).compile()
        done = Compiled(call.program.name, sizes_of(call), call.count, time.perf_counter() - start)
        tell(done)
        return done

    with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="compile") as pool:
        done = list(pool.map(one, calls))
    return done, compilations().since(before).cache_hits


def listed(calls: Sequence[Call]) -> list[Compiled]:
    """The programs of the forecast, without compiling them."""
    return [Compiled(call.program.name, sizes_of(call), call.count) for call in calls]


def sizes_of(call: Call) -> str:
    """The sizes that set a program apart from others of its name."""
    parts = [text for x in (*call.args, *call.keywords.values()) for text in [_sizes(x)] if text]
    parts += [f"{name} {x}" for name, x in call.keywords.items() if isinstance(x, int) and not isinstance(x, bool)]
    return ", ".join(dict.fromkeys(parts))


def _sizes(x: Any) -> str:
    if isinstance(x, DecodeState):
        slots, lanes = x.active.shape
        rings = f", rings of {x.capacity}" if x.lanes else ""
        return f"{slots} slots of {lanes} lanes{rings}" + (f", trunks of {x.trunks.hidden.shape[1]}" if rings else "")
    if isinstance(x, TrainRows):
        x = x.rows
    if isinstance(x, Rows):
        (rows, trunk), lanes, capacity = x.trunk_ids.shape, x.lanes, x.branch_ids.shape[-1]
        return f"{rows} row{'s' * (rows != 1)} of {trunk} + {lanes} x {capacity}"
    if isinstance(x, Trunks):
        return f"trunks {x.hidden.shape[0]} x {x.hidden.shape[1]}"
    shape = getattr(x, "shape", None)
    return "x".join(map(str, shape)) if shape else ""
