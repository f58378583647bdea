"""``fr3e plan``: send the request to the planning process and print its answer."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from fr3e_jax.configuration import Config, ConfigError, to_yaml
from fr3e_jax.planning.planner_process import INSTALL, PlanningFailed, find_libtpu, run_planner
from fr3e_jax.planning.topology import TopologyError, parse_topology

DOES_NOT_FIT = 1  # the exit code of a failed run, too


def plan(config: Config, arguments: argparse.Namespace) -> int:
    """Print the plan of a recipe; return 0 if every program fits, else 1.

    Raises:
      ConfigError: the topology cannot be read, the mesh does not fit it, or there is no libtpu.
    """
    try:
        topology = parse_topology(arguments.topology, arguments.slices)
    except TopologyError as error:
        raise ConfigError(str(error)) from error
    estimate = arguments.estimate or topology.chip.platform == "gpu"
    if not estimate and find_libtpu() is None:
        raise ConfigError(f"--topology {topology.name} needs libtpu to compile for: {INSTALL}; or add --estimate")
    with tempfile.TemporaryDirectory() as directory:
        recipe = Path(directory) / "recipe.yaml"
        recipe.write_text(to_yaml(config), encoding="utf-8")
        request = {
            "config": str(recipe),
            "topology": topology.name,
            "slices": 1,  # the topology's name states the slices
            "estimate": estimate,
            "programs": [name for name in arguments.programs.split(",") if name],
            "search": arguments.search,
            "compile": arguments.compile,
            "response_tokens": arguments.response_tokens,
            "kept_share": arguments.kept_share,
            "efficiency": arguments.efficiency,
            "price": arguments.price,
        }
        answer = _answer(request)
    print(json.dumps(answer.get("plan") or answer["search"], indent=2) if arguments.json else answer["text"])
    return 0 if answer["fits"] else DOES_NOT_FIT


def _answer(request: dict) -> dict:
    try:
        return run_planner(request, lambda line: print(line, file=sys.stderr, flush=True))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except PlanningFailed as error:
        print(f"fr3e plan: {error}", file=sys.stderr)
        raise SystemExit(1) from error
