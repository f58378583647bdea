"""The plan of a recipe on a topology: all its programs, and the amounts and least time of a training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.compile import ProgramPlan, compiled_plan, estimated_plan, usable_bytes
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.mesh_sizes import MeshSizes, check_meshes, training_sizes
from fr3e_jax.planning.step_time import (
    PEAK,
    Amounts,
    Assumptions,
    Efficiency,
    Expected,
    Stage,
    expected,
    expected_seconds,
    planned_steps,
    stages,
    step_amounts,
)
from fr3e_jax.planning.targets import Programs
from fr3e_jax.planning.topology import Topology
from fr3e_jax.planning.tuning import Change, advise, cheaper, program_names
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.experts import routes_type
from fr3e_jax.programs.fused_rows import chosen_attention
from fr3e_jax.programs.reshard import read_type
from fr3e_jax.session.adapters_and_experts import check_experts
from fr3e_jax.session.model import configured_architecture, rollout_tensor


@dataclass(frozen=True)
class Plan:
    """The result of `fr3e plan`."""

    recipe: str
    algorithm: str
    topology: str
    devices: int
    estimated: bool  # nothing was compiled
    parameters: int
    mesh: MeshSizes
    rollout_mesh: MeshSizes
    assumed: Assumptions
    programs: list[ProgramPlan]
    advice: dict[str, list[Change]] = field(default_factory=dict)  # for each program that does not fit
    amounts: Amounts | None = None  # None, as all below, if only some of the programs were planned
    stages: list[Stage] = field(default_factory=list)
    expected: Expected | None = None  # of a step and of the run
    cheaper: list[Change] = field(default_factory=list)  # made together
    route_bytes: int = 0  # of the experts that are recorded for a token
    sampler_devices: int = 0  # of the devices, those that only sample

    @property
    def fits(self) -> bool:
        return all(program.fits for program in self.programs)

    @property
    def step_seconds(self) -> float:
        """The least time of a step."""
        return expected_seconds(self.stages, PEAK)

    def as_json(self) -> dict[str, Any]:
        """All fields as plain values, with the sums that the text shows."""
        programs = [
            asdict(program) | {"total_bytes": program.total_bytes, "share": program.share, "fits": program.fits}
            for program in self.programs
        ]
        return asdict(self) | {"fits": self.fits, "step_seconds": self.step_seconds, "programs": programs}


def make_plan(
    config: Config,
    topology: Topology,
    devices: Sequence | None,
    *,
    names: Sequence[str] = (),
    assumed: Assumptions | None = None,
    vocab_size: int = 0,
    efficiency: Efficiency | None = None,
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
      planned: called with each program as soon as it is planned.

    Raises:
      ValueError: the mesh does not fit the devices or the network (`MeshMismatch`), or a name is not one of the
        recipe's programs; or the hardware does not run the attention that the recipe names.
    """
    architecture = configured_architecture(config, vocab_size)
    config = with_choices(config, architecture, topology)
    check_experts(config, architecture)
    assumed = assumed or Assumptions(config.rollout.max_response_tokens)
    estimator = Estimator(config, architecture, topology.devices, assumed.response_tokens)
    check_meshes(config.mesh, architecture, topology)
    all_names = program_names(config, estimator)
    if unknown := [name for name in names if name not in all_names]:
        raise ValueError(f"--programs {unknown[0]}: this recipe runs {', '.join(all_names)}")
    programs = Programs(config, devices, vocab_size) if devices is not None else None
    plans = []
    for name in [name for name in all_names if not names or name in names]:
        plan = estimated_plan(name, estimator, topology)
        if programs is not None:
            plan = compiled_plan(programs.target(name), plan, topology)
        plans.append(plan)
        planned(plan)
    complete = len(plans) == len(all_names)
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
        advice={name: advise(estimator, name) for name in [plan.name for plan in plans if not plan.fits]},
        route_bytes=route_bytes(architecture),
        sampler_devices=config.mesh.sampler_devices,
        **(_of_step(estimator, plans, topology, assumed, efficiency) if complete else {}),
    )


def with_choices(config: Config, architecture: Architecture, topology: Topology) -> Config:
    """The recipe with what a run on this hardware chooses: attention, and type and layout of the rollouts' weights."""
    model, platform = config.model, topology.chip.platform
    attention = chosen_attention(model.attention, platform, architecture.head_dim)
    read = read_type(config.rollout.param_dtype, model.param_dtype, model.compute_dtype, platform)
    split, memory = training_sizes(config.mesh, topology.devices).gathered_over, usable_bytes(topology.chip)
    rollouts_on = config.mesh.sampler_devices or topology.devices
    tensor = rollout_tensor(config, architecture, read, split, rollouts_on, memory)
    choices = {"model.attention": attention, "rollout.param_dtype": read, "mesh.rollout_tensor": tensor}
    for setting, value in choices.items():
        config = Change(setting, value).applied(config)
    return config


def _of_step(
    estimator: Estimator,
    plans: list[ProgramPlan],
    topology: Topology,
    assumed: Assumptions,
    efficiency: Efficiency | None,
) -> dict[str, Any]:
    """The fields of `Plan` about a step; ``plans``: of all its programs."""
    amounts = step_amounts(estimator.config, assumed, estimator.slots)
    parts, steps = stages(plans, amounts, separate=estimator.separate), planned_steps(estimator.config, amounts)
    parameters = estimator.a.num_parameters
    return dict(
        amounts=amounts,
        stages=parts,
        expected=expected(parts, amounts, topology, parameters, steps=steps, efficiency=efficiency),
        cheaper=cheaper(estimator, topology, assumed, efficiency),
    )


def route_bytes(architecture: Architecture) -> int:
    """Bytes that a rollout's token has for the experts that it passed."""
    return architecture.routes_per_token * routes_type(architecture.num_experts).itemsize
