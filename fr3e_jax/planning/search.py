"""A search for settings that are fast and fit: meshes, micro-batch sizes, slots, lanes and prompts of a round.

Many candidates are estimated, the best few are compiled, and one is recommended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.compile import ProgramPlan, estimated_plan
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.lane_use import LaneUse, lane_use
from fr3e_jax.planning.layout_check import check_layout
from fr3e_jax.planning.topology import Topology
from fr3e_jax.planning.tuning import changed
from fr3e_jax.planning.typical_rows import of_a_step
from fr3e_jax.planning.workload import Amounts, Assumptions, step_amounts
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.programs.mesh import MeshMismatch

_TENSOR = (1, 2, 4, 8, 16)
_CONTEXTS = (2, 4, 8)  # of rows of at least so many positions, or as in the recipe
_LONG_ROW = 2**16
_ROWS = (1, 2, 4)  # of a micro-batch, for each batch shard
_TIMES = (0.25, 0.5, 1, 2)  # of the recipe's slots and lanes
_PROMPTS = (1, 0.5, 0.25)  # of the recipe's, in a round
_COMFORTABLE = 0.9  # share of HBM; candidates with a larger estimate are tried last
_WORTH = 0.03  # of a step; settings that save less are not named

# The programs that are estimated to rank a candidate, and compiled to confirm it.
TRAINING, ROLLOUTS = ("accumulate",), ("decode", "explore")


@dataclass(frozen=True)
class Candidate:
    """Settings to try, with their estimate."""

    settings: dict[str, int]  # section__field: value
    seconds: float  # of one training step
    share: float  # of HBM that the largest program holds

    @property
    def text(self) -> str:
        return " ".join(f"{path.replace('__', '.')}={value}" for path, value in self.settings.items())


def training_settings(config: Config, topology: Topology, a: Architecture) -> Iterator[dict[str, int]]:
    """Meshes that divide the network, each with a few micro-batch sizes."""
    positions = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    positions += config.rollout.max_response_tokens * config.explore.enabled
    expert = config.mesh.expert
    contexts = [1] if expert > 1 else sorted({1, config.mesh.context, *(_CONTEXTS if positions >= _LONG_ROW else ())})
    for tensor in _TENSOR:
        inside = topology.chips_per_slice
        if a.num_heads % tensor or a.intermediate_size % tensor or inside % tensor:
            continue
        replicas = (topology.slices, 2 * topology.slices, 4 * topology.slices)
        for replica, context in itertools.product(replicas, contexts):
            if topology.devices % (replica * expert * context * tensor):
                continue
            fsdp = topology.devices // replica // expert // context // tensor
            if a.hidden_size % (fsdp * expert * context):
                continue
            for rows in _ROWS:
                one = {
                    "mesh__replica": replica,
                    "mesh__fsdp": fsdp,
                    "mesh__tensor": tensor,
                    "training__micro_batch_tokens": rows * replica * fsdp * expert * positions,
                }
                yield one | ({"mesh__context": context} if len(contexts) > 1 else {})


def rollout_settings(config: Config, topology: Topology, a: Architecture) -> Iterator[dict[str, int]]:
    """Meshes for rollouts (copies of the weights, each split into tensor shards), each with slots, lanes and prompts.

    None of them changes a sampled token of a prompt. Fewer prompts a round need less room for promoted trunks.
    """
    r, tried = config.rollout, set()
    for tensor, slots, lanes, prompts in itertools.product(_TENSOR, _TIMES, _TIMES, _PROMPTS):
        if a.num_heads % tensor or topology.chips_per_slice % tensor:
            continue
        # Slots are rounded up to the batch shards, so a number that means the recipe's is written as the recipe's.
        shards = topology.devices // tensor
        rounded = [-(-round(n) // shards) * shards for n in (r.trunk_slots * slots, r.trunk_slots)]
        one = {
            "mesh__rollout_tensor": tensor,
            "mesh__rollout_fsdp": 1,
            "mesh__rollout_replica": -1,
            "rollout__trunk_slots": r.trunk_slots if rounded[0] == rounded[1] else rounded[0],
            "rollout__lanes_per_trunk": max(round(r.lanes_per_trunk * lanes), 1),
            "rollout__prompts_per_round": max(round(r.prompts_per_round * prompts), 1),
        }
        # More lanes than a prompt has rollouts would stay empty.
        if one["rollout__lanes_per_trunk"] <= max(r.rollouts_per_prompt, r.lanes_per_trunk):
            if tuple(one.values()) not in tried:
                tried.add(tuple(one.values()))
                yield one


def ranked(
    config: Config,
    architecture: Architecture,
    topology: Topology,
    settings: Iterator[dict[str, int]],
    names: Sequence[str],
    assumed: Assumptions,
) -> list[Candidate]:
    """Candidates in the order to try: those that fit comfortably, fastest first; then the others, smallest first."""
    found, amounts = [], {}
    for one in settings:
        try:
            trial = changed(config, **one)
            estimator = Estimator(trial, architecture, topology.devices)
            check_layout(estimator, topology)
            plans = [estimated_plan(name, estimator, topology) for name in names]
        except (MeshMismatch, ValueError):
            continue  # these devices have no such mesh
        rows = estimator.train.batch_shards, trial.training.micro_batch_tokens
        if rows not in amounts:
            amounts[rows] = step_amounts(trial, assumed, rows[0], scores=False)
        use = lane_use(trial, estimator.slots, assumed.response_tokens, estimator.roll.batch_shards)
        timed = of_a_step(plans, estimator, amounts[rows], use, topology)
        found.append(Candidate(one, _seconds(timed, amounts[rows], use), max(p.share for p in plans)))
    roomy = sorted((c for c in found if c.share <= _COMFORTABLE), key=lambda c: c.seconds)
    return roomy + sorted((c for c in found if c.share > _COMFORTABLE), key=lambda c: c.share)


def _seconds(plans: Sequence[ProgramPlan], amounts: Amounts, use: LaneUse) -> float:
    """The least time of these programs in a training step."""
    handled = {"accumulate": amounts.padded_positions, "decode": amounts.base_tokens / use.decode}
    handled["explore"] = amounts.explored_tokens / use.explore
    return sum(handled[plan.name] / plan.positions * plan.floor_seconds for plan in plans)


@dataclass(frozen=True)
class Choice:
    """The outcome of a search."""

    chosen: Candidate | None  # the first whose compiled programs fit
    plans: list[ProgramPlan]  # of the chosen candidate
    refused: list[Candidate]  # compiled before it, and too large
    considered: int  # candidates that were estimated


def choose(
    candidates: Sequence[Candidate], compiled: Callable[[Candidate], list[ProgramPlan]], most: int = 3
) -> Choice:
    """Compile at most ``most`` candidates in their order, until one fits."""
    refused = []
    for candidate in candidates[:most]:
        plans = compiled(candidate)
        if all(plan.fits for plan in plans):
            return Choice(candidate, plans, refused, len(candidates))
        refused.append(candidate)
    return Choice(None, [], refused, len(candidates))


@dataclass(frozen=True)
class Faster:
    """The fastest settings that fit by estimate, where they are faster than those of the recipe."""

    settings: str
    seconds: float  # of the programs that they concern, in a step
    before: float  # of the same programs with the recipe's settings
    step: float  # what they save of the least time of a step, 0 to 1


def faster(
    config: Config, architecture: Architecture, topology: Topology, assumed: Assumptions, step_seconds: float
) -> list[Faster]:
    """Settings that shorten a step by estimate: of training, then of rollouts, where they save 3 % of it or more."""
    found = []
    kinds = ((TRAINING, training_settings(config, topology, architecture)),)
    kinds += ((ROLLOUTS, rollout_settings(config, topology, architecture)),)
    for names, settings in kinds:
        if not config.explore.enabled:
            names = tuple(name for name in names if name != "explore")
        now = ranked(config, architecture, topology, iter([{}]), names, assumed)
        best = ranked(config, architecture, topology, settings, names, assumed)[:1]
        if now and best and best[0].share <= _COMFORTABLE:
            saved = (now[0].seconds - best[0].seconds) / step_seconds
            if saved >= _WORTH:
                found.append(Faster(differing(config, best[0]), best[0].seconds, now[0].seconds, saved))
    return found


def differing(config: Config, candidate: Candidate) -> str:
    """The candidate's settings that are not the recipe's, as overrides."""
    changes = {}
    for path, value in candidate.settings.items():
        section, name = path.split("__")
        if getattr(getattr(config, section), name) != value:
            changes[path] = value
    return Candidate(changes, 0.0, 0.0).text
