"""The plan of a recipe on a topology: all its programs, and the amounts and least time of a training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.compilations import Compilations, layer_programs
from fr3e_jax.planning.compile import ProgramPlan, compile_target, estimated_plan, largest_arrays
from fr3e_jax.planning.estimate import Estimator, Sizes
from fr3e_jax.planning.expected import Efficiency, Expected, expected
from fr3e_jax.planning.lane_use import LaneUse, lane_use
from fr3e_jax.planning.layout_check import check_layout
from fr3e_jax.planning.search import Faster, faster
from fr3e_jax.planning.targets import PROGRAMS, Programs
from fr3e_jax.planning.topology import Topology
from fr3e_jax.planning.tuning import Change, advise, changed
from fr3e_jax.planning.typical_rows import of_a_step
from fr3e_jax.planning.workload import Amounts, Assumptions, step_amounts
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.experts import routes_type
from fr3e_jax.programs.fused_rows import chosen_attention
from fr3e_jax.session.model import configured_architecture
from fr3e_jax.session.placed_network import check_experts


@dataclass(frozen=True)
class Stage:
    """A stage of a training step: the number of calls of its program, and the least time of all calls."""

    name: str
    calls: float
    seconds: float
    dominated_by: str


@dataclass(frozen=True)
class Plan:
    """The result of `fr3e plan`."""

    recipe: str
    algorithm: str
    topology: str
    devices: int
    estimated: bool  # nothing was compiled
    parameters: int
    mesh: Sizes
    rollout_mesh: Sizes
    assumed: Assumptions
    programs: list[ProgramPlan]
    advice: dict[str, list[Change]] = field(default_factory=dict)  # for each program that does not fit
    amounts: Amounts | None = None  # None if only some of the programs were planned
    stages: list[Stage] = field(default_factory=list)
    lane_use: LaneUse | None = None  # with ``amounts``
    expected: Expected | None = None  # of a step and of the run, with ``amounts``
    faster: list[Faster] = field(default_factory=list)
    compilations: Compilations | None = None  # with ``amounts``
    route_bytes: int = 0  # of the experts that are recorded for a token

    @property
    def fits(self) -> bool:
        return all(program.fits for program in self.programs)

    @property
    def step_seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def as_json(self) -> dict[str, Any]:
        """All fields as plain values, with the sums that the text shows."""
        programs = [asdict(p) | {"total_bytes": p.total_bytes, "share": p.share} for p in self.programs]
        return asdict(self) | {"fits": self.fits, "step_seconds": self.step_seconds, "programs": programs}


def program_names(config: Config, estimator: Estimator) -> list[str]:
    """The names of the programs that a recipe runs, in the order of a step."""
    absent = set() if estimator.copies else {"reshard"}
    absent |= set() if config.explore.enabled else {"promote", "explore"}
    return [name for name in PROGRAMS if name not in absent]


def with_attention(config: Config, architecture: Architecture, topology: Topology) -> Config:
    """The settings with the attention that ``auto`` stands for on this hardware.

    Raises:
      ValueError: the hardware does not run the attention that is asked for.
    """
    chosen = chosen_attention(config.model.attention, topology.chip.platform, architecture.head_dim)
    return changed(config, model__attention=chosen)


def make_plan(
    config: Config,
    topology: Topology,
    devices: Sequence | None,
    *,
    names: Sequence[str] = (),
    assumed: Assumptions | None = None,
    vocab_size: int = 0,
    efficiency: Efficiency | None = None,
    price: float = 0.0,
    planned: Callable[[ProgramPlan], None] = lambda plan: None,
) -> Plan:
    """Plan the programs of a recipe on a topology.

    Args:
      config: the recipe.
      topology: the hardware.
      devices: its devices, to compile for; None to estimate.
      names: the programs to plan; empty for all that the recipe runs.
      assumed: the lengths from which amounts are computed; None: every response fills the cap.
      vocab_size: size of the tokenizer, where neither ``model.path`` nor ``model.architecture`` gives it.
      efficiency: the shares of the peaks that programs are expected to reach; None: the assumed ones.
      price: of a chip-hour.
      planned: called with each program as soon as it is planned.

    Raises:
      ValueError: the mesh does not fit the devices or the network (`MeshMismatch`), or a name is not one of the
        recipe's programs; or the hardware does not run the attention that is asked for.
    """
    architecture = configured_architecture(config, vocab_size)
    config = with_attention(config, architecture, topology)
    check_experts(config, architecture)
    estimator = Estimator(config, architecture, topology.devices)
    check_layout(estimator, topology)
    all_names = program_names(config, estimator)
    if unknown := [name for name in names if name not in all_names]:
        raise ValueError(f"--programs {unknown[0]}: this recipe runs {', '.join(all_names)}")
    assumed = assumed or Assumptions(config.rollout.max_response_tokens)
    programs = Programs(config, devices, vocab_size) if devices is not None else None
    plans = []
    for name in [name for name in all_names if not names or name in names]:
        estimate = estimator.of(name)
        if programs is None:
            plan = estimated_plan(name, estimator, topology)
        else:
            plan = replace(compile_target(programs.target(name), topology), largest=largest_arrays(estimate))
        plans.append(plan)
        planned(plan)
    whole = len(plans) == len(all_names)
    amounts = step_amounts(config, assumed, estimator.train.batch_shards) if whole else None
    use = lane_use(config, estimator.slots, assumed.response_tokens, estimator.roll.batch_shards)
    parts = stages(of_a_step(plans, estimator, amounts, use, topology), amounts, use) if amounts else []
    times = [(stage.seconds, stage.dominated_by) for stage in parts]
    more = dict(steps=planned_steps(config, amounts), efficiency=efficiency, price=price) if amounts else {}
    size, least = architecture.num_parameters, sum(stage.seconds for stage in parts)
    return Plan(
        recipe=config.name,
        algorithm=config.algorithm,
        topology=topology.name,
        devices=topology.devices,
        estimated=programs is None,
        parameters=architecture.num_parameters,
        mesh=estimator.train,
        rollout_mesh=estimator.roll,
        assumed=assumed,
        programs=plans,
        advice=_advice(config, architecture, topology, plans),
        amounts=amounts,
        stages=parts,
        lane_use=use if amounts else None,
        expected=expected(times, amounts, topology, size, **more) if amounts else None,
        faster=faster(config, architecture, topology, assumed, least) if amounts else [],
        route_bytes=route_bytes(config, architecture),
        compilations=layer_programs(config, {p.name: p.compile_seconds for p in plans}) if amounts else None,
    )


def route_bytes(config: Config, architecture: Architecture) -> int:
    """Bytes that a rollout's token has for the experts that it passed."""
    recorded = architecture.routes_per_token if config.model.experts.router_replay else 0
    return recorded * routes_type(architecture.num_experts).itemsize


def planned_steps(config: Config, amounts: Amounts) -> int:
    """Training steps of the run, by the smaller of its budgets; 0 without one."""
    training = config.training
    limits = [training.max_steps, math.ceil(training.max_sampled_tokens / amounts.sampled_tokens)]
    return min([limit for limit in limits if limit], default=0)


def _advice(config: Config, architecture: Architecture, topology: Topology, plans: list[ProgramPlan]):
    too_large = [plan.name for plan in plans if not plan.fits]
    return {name: advise(config, architecture, topology.devices, name) for name in too_large}


def stages(plans: Sequence[ProgramPlan], amounts: Amounts, use: LaneUse) -> list[Stage]:
    """The stages of a training step: calls and least time, computed from the least time of one call."""
    handled = {
        "prefill": amounts.prefill_positions,
        "decode": amounts.base_tokens / use.decode,
        "explore": amounts.explored_tokens / use.explore,
        "score": amounts.score_positions,
        "accumulate": amounts.padded_positions,
    }
    calls = {"reshard": 1.0, "promote": amounts.prompts, "apply": float(amounts.updates)}
    found = []
    for plan in plans:
        count = handled[plan.name] / plan.positions if plan.name in handled else calls[plan.name]
        found.append(Stage(plan.name, count, count * plan.floor_seconds, plan.dominated_by))
    return found
