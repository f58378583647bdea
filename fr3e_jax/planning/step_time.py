"""A training step by arithmetic: its amounts of work, and its time as least times over stated efficiencies.

Only a run knows the lengths of responses and the places of anchors. Amounts assume responses of one mean length, evenly
spaced anchors, and a share of prompts that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.trained_trunks import trains_trunks
from fr3e_jax.learning.update import reads_old_logprobs
from fr3e_jax.planning.compile import ProgramPlan
from fr3e_jax.planning.estimate import SAMPLING
from fr3e_jax.planning.topology import Topology
from fr3e_jax.planning.workload import TrunkBranches, bases_per_prompt, even_anchors, filled_lanes, trunks_of_prompt


@dataclass(frozen=True)
class Assumptions:
    """Assumptions for the amounts: mean response length in tokens, and the share of prompts that are kept."""

    response_tokens: int
    kept_share: float = 1.0


@dataclass(frozen=True)
class Amounts:
    """Amounts of one training step (a full batch): totals over all devices, without padding."""

    prompts: float
    base_tokens: float
    explored_tokens: float
    explored_rollouts: float
    promotions: float  # of expanded bases
    prefill_positions: float
    trained_rollouts: int
    loss_tokens: int
    trained_positions: int  # positions through the network; a shared prefix counts once per trunk
    flattened_positions: int  # the same if every rollout were a sequence of its own
    scored_positions: int  # of the pass that computes the old log-probs
    taught_positions: int  # of the teacher's own pass
    updates: int
    base_lanes: float  # the share of lane steps that sample a token of a base rollout
    explored_lanes: float

    @property
    def sampled_tokens(self) -> float:
        return self.base_tokens + self.explored_tokens


def step_amounts(config: Config, assumed: Assumptions, slots: int) -> Amounts:
    """The amounts that a step samples, prefills and trains, with ``slots`` trunks in the decoder."""
    explore, rollout, training = config.explore, config.rollout, config.training
    response, cap = assumed.response_tokens, rollout.max_response_tokens
    forks = even_anchors(explore.num_anchors, response)
    trunks = trunks_of_prompt(config, response, forks)
    prompts = training.batch_rollouts / sum(map(len, trunks)) / assumed.kept_share
    starts = [0, *forks] if explore.initial_state == "fresh" else forks
    explored = bases_per_prompt(config) * explore.rollouts_per_state * len(starts)  # rollouts of a kept prompt
    rest = sum(response - fork for fork in starts) / max(len(starts), 1)  # tokens of such a rollout
    longest = cap - min(starts, default=0)
    mini_batch = _first(trunks, training.mini_batch_rollouts)
    everything = scored = _first(trunks, training.batch_rollouts)
    teaches = config.teacher.path and config.teacher.place == "advantage"
    if config.advantage.base_estimator != "gae" and not reads_old_logprobs(config):
        scored = scored[len(mini_batch) :]  # the first mini-batch has its old log-probs from its gradient
    branches = [branch for trunk in mini_batch for branch in trunk]
    passes = max(training.batch_rollouts // training.mini_batch_rollouts, 1) * training.epochs
    in_round = _prompts_at_once(config)
    base_lanes, explored_lanes = (slots * filled_lanes(config, explore) for explore in (False, True))
    return Amounts(
        prompts=prompts,
        base_tokens=prompts * rollout.rollouts_per_prompt * response,
        explored_tokens=prompts * assumed.kept_share * explored * rest,
        explored_rollouts=prompts * assumed.kept_share * explored,
        promotions=prompts * assumed.kept_share * bases_per_prompt(config),
        prefill_positions=prompts * config.data.max_prompt_tokens,
        trained_rollouts=training.batch_rollouts,
        loss_tokens=passes * sum(length for _, length in branches),
        trained_positions=passes * _positions(config, mini_batch),
        flattened_positions=passes * sum(fork + length for fork, length in branches),
        scored_positions=_positions(config, scored),
        taught_positions=_positions(config, everything) if teaches else 0,
        updates=passes,
        base_lanes=busy_lanes(in_round * rollout.rollouts_per_prompt, base_lanes, response, cap),
        explored_lanes=busy_lanes(in_round * explored, explored_lanes, rest, longest) if explored else 1.0,
    )


def _prompts_at_once(config: Config) -> int:
    """Prompts that are sampled before a wait for the longest response: a round, or the rounds of one stream."""
    prompts, rollouts = config.rollout.prompts_per_round, config.rollout.rollouts_per_prompt
    single = config.explore.enabled or config.returns.size
    return prompts if single else prompts * math.ceil(config.training.batch_rollouts / (prompts * rollouts))


def busy_lanes(rollouts: int, lanes: int, mean: float, cap: int) -> float:
    """The share of lane steps that sample a token, in a round of ``rollouts`` responses: an upper bound.

    A round waits for its longest response. Of n exponential lengths the longest has mean * (ln n + 0.58) tokens (the
    expected maximum, with Euler's constant), and at most ``cap``.
    """
    longest = min(cap, mean * max(math.log(rollouts) + 0.58, 1.0))
    return rollouts * mean / lanes / max(longest, rollouts * mean / lanes)


def _first(trunks: list[TrunkBranches], rollouts: int) -> list[TrunkBranches]:
    """Whole trunks, repeated in turn, until they have at least ``rollouts`` rollouts."""
    taken: list[TrunkBranches] = []
    while sum(map(len, taken)) < rollouts:
        taken.append(trunks[len(taken) % len(trunks)])
    return taken


def _positions(config: Config, trunks: Sequence[TrunkBranches]) -> int:
    """Positions of the trunks as far as branches see them, and of the branches that do not lie on them."""
    on_trunk = int(trains_trunks(config.explore))  # the last branch of each is the trunk's own response
    ends = [fork + length * on_trunk for fork, length in (trunk[-1] for trunk in trunks)]
    forks = [max(end, *(fork for fork, _ in trunk)) for end, trunk in zip(ends, trunks, strict=True)]
    return sum(forks) + sum(length for trunk in trunks for _, length in trunk[: len(trunk) - on_trunk])


@dataclass(frozen=True)
class Stage:
    """A stage of a training step: the number of calls of its program, and the least time of all calls."""

    name: str
    calls: float
    seconds: float
    dominated_by: str
    beside: str = ""  # sampling or training, where these run at the same time (``mesh.sampler_devices``)


def stages(plans: Sequence[ProgramPlan], amounts: Amounts, *, separate: bool = False) -> list[Stage]:
    """The stages of a training step: calls and least time, computed from the least time of one call.

    ``separate``: devices of their own sample.
    """
    positions = {
        "prefill": amounts.prefill_positions,
        "decode": amounts.base_tokens / amounts.base_lanes,
        "explore": amounts.explored_tokens / amounts.explored_lanes,
        "score": amounts.scored_positions,
        "teach": amounts.taught_positions,
        "accumulate": amounts.trained_positions,
    }
    calls = {"reshard": 1.0, "promote": amounts.promotions, "apply": float(amounts.updates)}
    calls |= {plan.name: max(positions[plan.name] / plan.positions, 1) for plan in plans if positions.get(plan.name)}
    sides = dict.fromkeys(SAMPLING, "sampling") | dict.fromkeys(("score", "teach", "accumulate", "apply"), "training")
    sides = sides if separate else {}
    return [
        Stage(
            plan.name,
            calls[plan.name],
            calls[plan.name] * plan.floor_seconds,
            plan.dominated_by,
            sides.get(plan.name, ""),
        )
        for plan in plans
        if plan.name in calls
    ]


@dataclass(frozen=True)
class Efficiency:
    """The share of its limiting peak that a program is assumed to reach, by what limits it.

    ``compute``: MaxText publishes 45.5 % of the peak for Llama 3.1 8B on v6e-256 and 65.4 % for Llama 2 70B on v5p-512.
    ``memory``: sglang-jax publishes 1,893 tokens/s a chip for Qwen3-8B and 531 for Qwen3-32B (bfloat16, v6e-4, 256
    streams), 0.35 and 0.22 of the decoding floor that `Estimator` gives for 1,024 + 1,024 tokens; the lengths were not
    published. ``network``: nothing comparable is published. Nothing of it was measured with this package.
    """

    compute: float = 0.5
    memory: float = 0.35
    network: float = 0.5

    def of(self, limit: str) -> float:
        """The efficiency of a program that ``limit`` (compute, memory or network) bounds."""
        return getattr(self, limit)


PEAK = Efficiency(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Expected:
    """Figures of a training step that follow from least times and assumed efficiencies."""

    efficiency: Efficiency
    step_seconds: float
    tokens_per_second_per_chip: float  # sampled
    mfu: float  # model FLOPs of the step by what the chips could compute in it
    chip_hours_per_step: float
    steps: int  # of the run; 0: its length is not known
    chip_hours: float  # of all steps


def expected_seconds(parts: Sequence[Stage], efficiency: Efficiency | None = None) -> float:
    """Seconds that the stages of a step are expected to take: of sampling beside training, those of the longer."""
    times = dict.fromkeys(("", "sampling", "training"), 0.0)
    for stage in parts:
        times[stage.beside] += stage.seconds / (efficiency or Efficiency()).of(stage.dominated_by)
    return times[""] + max(times["sampling"], times["training"])


def expected(
    parts: Sequence[Stage],
    amounts: Amounts,
    topology: Topology,
    parameters: int,
    *,
    steps: int = 0,
    efficiency: Efficiency | None = None,
) -> Expected:
    """Compute the expectation.

    Model FLOPs are 2 N for each sampled token and each position of a prefill or a scoring pass, and 6 N for each
    trained position (Chowdhery et al. 2022, arXiv:2204.02311, appendix B, without attention). Recomputation does not
    count. ``steps``: of the whole run; ``parameters``: N; ``efficiency``: None: the assumed one.
    """
    efficiency = efficiency or Efficiency()
    seconds = expected_seconds(parts, efficiency)
    forward = amounts.sampled_tokens + amounts.prefill_positions + amounts.scored_positions
    flops = parameters * (2 * forward + 6 * amounts.trained_positions)
    hours = seconds * topology.devices / 3600
    return Expected(
        efficiency=efficiency,
        step_seconds=seconds,
        tokens_per_second_per_chip=amounts.sampled_tokens / seconds / topology.devices,
        mfu=flops / (seconds * topology.devices * topology.chip.peak_flops),
        chip_hours_per_step=hours,
        steps=steps,
        chip_hours=hours * steps,
    )


def planned_steps(config: Config, amounts: Amounts) -> int:
    """Training steps of the run, by the smaller of its budgets; 0 without one."""
    training = config.training
    limits = [training.max_steps, math.ceil(training.max_sampled_tokens / amounts.sampled_tokens)]
    return min([limit for limit in limits if limit], default=0)
