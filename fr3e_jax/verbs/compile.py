"""``fr3e compile``: the programs that a run's shapes declare, compiled into its cache before the run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration import Config, ConfigError, load_config
from fr3e_jax.planning.absent_devices import enter_planning_for


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--list", action="store_true", help="show the programs; compile none")
    parser.add_argument(
        "--topology",
        default="",
        metavar="CHIP:SHAPE",
        help="compile for hardware that is not there, as fr3e plan does; nothing is kept, but each program's memory "
        "and the seconds that it took are shown",
    )
    parser.add_argument("--json", action="store_true", help="print them as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compile the programs of a recipe's run, unless they are only listed, and print them; return the exit code."""
    config = load_config(arguments.recipe, arguments.overrides, training=False)
    if arguments.topology:
        if config.tools.kind != "none" or config.environment.enabled or config.rollout.stop_texts:
            raise ConfigError("--topology: programs with tools, environments or stop texts are compiled where they run")
        topology = enter_planning_for(arguments.topology)
        from fr3e_jax.planning.compile import topology_devices

        devices = topology_devices(topology)
        return compile_recipe(config, only_list=arguments.list, as_json=arguments.json, devices=devices)
    from fr3e_jax.cluster.membership import across_processes

    return across_processes(compile_recipe)(config, only_list=arguments.list, as_json=arguments.json)


def compile_recipe(config: Config, *, only_list: bool, as_json: bool, devices: Sequence | None = None) -> int:
    """Compile on each of several processes for its own devices; the first one prints; return 0.

    ``devices``: absent ones to compile for.

    Raises:
      ConfigError: the recipe cannot be run, or there is no cache to compile into.
    """
    import jax

    from fr3e_jax.cluster.processes import own_processes
    from fr3e_jax.planning.targets import devices_of
    from fr3e_jax.programs.program import Declarations
    from fr3e_jax.runs.compilation import compilations
    from fr3e_jax.session.declared_programs import declare_programs, sizes_text
    from fr3e_jax.session.session import open_session

    config.judge.model = ""  # nothing is graded
    session, first = open_session(config, keeps_routes=True, devices=devices), own_processes().first
    model, started = session.model, time.perf_counter()
    programs = model.train_programs(config), model.critic_programs(config)
    declared = declare_programs(Declarations(), session, *programs)
    lines = [{"name": declaration.program.name, "sizes": sizes_text(declaration)} for declaration in declared]
    if not only_list:
        if devices is not None:
            jax.config.update("jax_enable_compilation_cache", False)
        elif not jax.config.jax_compilation_cache_dir:
            raise ConfigError(
                "runtime.compilation_cache is empty, so that nothing would be kept; name a folder or an address "
                "that the run will use, too"
            )
        before = compilations()

        def measured(index: int) -> dict[str, float]:
            start = time.perf_counter()
            with devices_of(declared[index].arguments) if devices is not None else nullcontext():
                peak = declared[index].prepare().memory_analysis().peak_memory_in_bytes / 2**30
            seconds = time.perf_counter() - start
            if first:
                text = f"  {seconds:6.1f} s  {peak:6.2f} GiB  {' '.join(lines[index].values())}"
                print(text, file=sys.stderr, flush=True)
            return {"seconds": seconds, "peak_gib": peak}

        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="compile") as pool:
            measures = list(pool.map(measured, range(len(declared))))
        lines = [line | measure for line, measure in zip(lines, measures, strict=True)]
    if not first:
        return 0
    if as_json:
        print(json.dumps(lines, indent=2))
        return 0
    width = max(len(line["name"]) for line in lines)
    for line in lines if only_list else ():
        print(f"{line['name']:<{width}}  {line['sizes']}")
    fetched = "" if only_list else f", {compilations().since(before).cache_hits} of them were in the cache already"
    print(f"{len(lines)} programs{fetched}; {time.perf_counter() - started:.0f} s")
    return 0


VERB = Verb("fr3e compile configs/demo.yaml --list", declare, run)
