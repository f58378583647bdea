"""The planning process: reads one request as JSON from stdin, writes one JSON object a line to stdout.

It is a process of its own because libtpu reads its environment when jax is first loaded. The parent's side is
`fr3e_jax.planning.planner_process`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import Any

from fr3e_jax.configuration import load_config
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.planning import search
from fr3e_jax.planning.compile import ProgramPlan, compile_target, estimated_plan, topology_devices
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.expected import Efficiency
from fr3e_jax.planning.plan import make_plan, program_names, with_attention
from fr3e_jax.planning.plan_text import choice_text, gib, plan_text, seconds
from fr3e_jax.planning.targets import Programs
from fr3e_jax.planning.topology import Topology, parse_topology
from fr3e_jax.planning.tuning import changed
from fr3e_jax.planning.workload import Assumptions
from fr3e_jax.session.model import configured_architecture


def main() -> int:
    """Answer the request on stdin. A user's mistake is answered with ``{"error": ...}``."""
    request = json.load(sys.stdin)
    try:
        _answer(request)
    except (OSError, ValueError) as error:  # raised by files and values that the settings name
        _say(error=str(error))
    return 0


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _answer(request: dict[str, Any]) -> None:
    topology = parse_topology(request["topology"], request["slices"])
    config = load_config(request["config"], training=False)
    devices = None if request["estimate"] else topology_devices(topology)
    assumed = Assumptions(request["response_tokens"] or config.rollout.max_response_tokens, request["kept_share"])
    named = config.model.path or config.model.architecture != "custom"
    vocab_size = 0 if named else len(TextCodec.load(config.model.tokenizer))
    if request["search"]:
        _search(config, topology, devices, assumed, vocab_size, request["compile"])
        return
    plan = make_plan(
        config,
        topology,
        devices,
        names=request["programs"],
        assumed=assumed,
        vocab_size=vocab_size,
        efficiency=replace(Efficiency(), **request["efficiency"]),
        price=request["price"],
        planned=_progress,
    )
    _say(plan=plan.as_json(), text=plan_text(plan), fits=plan.fits)


def _progress(plan: ProgramPlan) -> None:
    if not plan.estimated:
        took = f"compiled in {seconds(plan.compile_seconds)}"
        _say(progress=f"{plan.name}: {gib(plan.total_bytes)} GiB ({plan.share:.0%}), {took}")


def _search(config: Config, topology: Topology, devices, assumed: Assumptions, vocab_size: int, most: int) -> None:
    architecture = configured_architecture(config, vocab_size)
    config = with_attention(config, architecture, topology)

    def compiled(candidate: search.Candidate, names) -> list[ProgramPlan]:
        trial = changed(config, **candidate.settings)
        estimator = Estimator(trial, architecture, topology.devices)
        names = [name for name in names if name in program_names(trial, estimator)]
        _say(progress=f"trying {candidate.text}")
        if devices is None:
            return [estimated_plan(name, estimator, topology) for name in names]
        programs = Programs(trial, devices, vocab_size)
        plans = [compile_target(programs.target(name), topology) for name in names]
        for plan in plans:
            _progress(plan)
        return plans

    text, found = [], {}
    settings = {"training": search.training_settings(config, topology, architecture)}
    settings["rollouts"] = search.rollout_settings(config, topology, architecture)
    for what, names in (("training", search.TRAINING), ("rollouts", search.ROLLOUTS)):
        if not config.explore.enabled:
            names = tuple(name for name in names if name != "explore")
        order = search.ranked(config, architecture, topology, settings[what], names, assumed)
        choice = search.choose(order, lambda candidate, names=names: compiled(candidate, names), most)
        if choice.chosen:
            config = changed(config, **choice.chosen.settings)
        text.append(choice_text(what, choice))
        found[what] = asdict(choice) | {"settings": choice.chosen.text if choice.chosen else None}
    fits = all(choice["chosen"] for choice in found.values())
    _say(search=found, text="\n".join(text), fits=fits)


if __name__ == "__main__":
    sys.exit(main())
