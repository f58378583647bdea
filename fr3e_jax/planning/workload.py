"""The amounts of work in one training step, and the largest shapes its programs can be called with.

Only a run knows the lengths of responses and the places of anchors, so both are assumed. *Shapes* assume the worst
case: every response fills the cap, the first anchor is its first token and the last anchor its last. *Amounts* assume
the typical case: responses of a given mean length, evenly spaced anchors, a given share of prompts kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.row_plan import plan_rows
from fr3e_jax.learning.row_shapes import Plan, RowShape
from fr3e_jax.learning.trained_trunks import PlannedSizes, owns_of, planned_sizes
from fr3e_jax.learning.update import reads_old_logprobs
from fr3e_jax.rollouts.cache_sizes import configured_sizes


@dataclass(frozen=True)
class Assumptions:
    """Assumptions for the amounts: mean response length in tokens, and the share of prompts that are kept."""

    response_tokens: int
    kept_share: float = 1.0


@dataclass(frozen=True)
class DecodeShape:
    """The sizes of one decoder state."""

    slots: int
    lanes: int  # of each slot
    trunk_capacity: int  # positions of a trunk
    capacity: int  # columns of a lane's ring
    promotable: bool  # the lanes keep their hidden states, so that their caches can be promoted to trunks


@dataclass(frozen=True)
class Amounts:
    """Amounts of one training step (a full batch): totals over all devices, without padding unless a name says so."""

    prompts: float
    base_tokens: float
    explored_tokens: float
    explored_rollouts: float
    prefill_positions: float
    trained_rollouts: int
    loss_tokens: int
    trained_positions: int  # positions through the network; a shared prefix counts once per row
    flattened_positions: int  # the same if every rollout were a sequence of its own
    padded_positions: int
    micro_batches: int
    updates: int
    score_positions: int  # padded positions of the pass that computes the old log-probs
    seen: float = 0.0  # positions that a padded position attends to, on average
    score_seen: float = 0.0  # the same in the pass of the old log-probs

    @property
    def sampled_tokens(self) -> float:
        return self.base_tokens + self.explored_tokens


def base_shape(config: Config, slots: int) -> DecodeShape:
    """The decoder state of the base rollouts. Exploration may promote their caches, so it makes them promotable."""
    r = config.rollout
    trunk = configured_sizes(config).trunk(config.data.max_prompt_tokens)
    return DecodeShape(slots, r.lanes_per_trunk, trunk, _largest_ring(config), config.explore.enabled)


def explore_shape(config: Config, slots: int) -> DecodeShape:
    """The decoder state of the rollouts from anchors. Their trunks are whole base rollouts."""
    return DecodeShape(slots, config.rollout.lanes_per_trunk, promoted_capacity(config), _largest_ring(config), False)


def _largest_ring(config: Config) -> int:
    cap = config.rollout.max_response_tokens
    return configured_sizes(config).ring(cap, cap)


def promoted_capacity(config: Config) -> int:
    """Positions of a promoted trunk, which holds a prompt and a whole response."""
    return configured_sizes(config).trunk(config.data.max_prompt_tokens + config.rollout.max_response_tokens)


def bases_per_prompt(config: Config) -> int:
    """The number of base rollouts that are expanded for each kept prompt."""
    explore = config.explore
    return min(explore.max_correct + explore.max_wrong, config.rollout.rollouts_per_prompt) if explore.enabled else 0


@dataclass(frozen=True)
class Trunk:
    """A trunk of a training row: for each branch, its fork and the number of its own tokens."""

    branches: tuple[tuple[int, int], ...]


def training_trunks(config: Config, response: int, forks: list[int]) -> list[Trunk]:
    """The training trunks of one kept prompt.

    Args:
      config: the recipe.
      response: tokens of each response.
      forks: for each anchor, the response tokens before it.
    """
    prompt, explore = config.data.max_prompt_tokens, config.explore
    trunks = []
    if not explore.enabled or explore.train_base:
        trunks.append(Trunk(((prompt, response),) * config.rollout.rollouts_per_prompt))
    if explore.enabled:
        starts = [0, *forks] if explore.initial_state == "fresh" else forks
        trained = explore.rollouts_per_state * explore.train_states
        branches = [(prompt + f, response - f) for f in starts for _ in range(trained)]
        branches += [(prompt, response)] * explore.block_credit
        trunks += [Trunk(tuple(branches))] * bases_per_prompt(config) * bool(branches)
    return trunks


def even_anchors(count: int, response: int) -> list[int]:
    """``count`` anchors that cut a response into blocks of equal length; fewer if the response is too short."""
    return sorted({response * (j + 1) // (count + 1) for j in range(min(count, response - 1))} - {0})


def extreme_anchors(count: int, response: int) -> list[int]:
    """``count`` anchors from the first token to the last: they put the longest branch and trunk into one row."""
    return sorted({round(x) for x in np.linspace(0, response - 1, max(min(count, response), 1))})


def _first(trunks: list[Trunk], rollouts: int) -> list[Trunk]:
    """Whole trunks, repeated in turn, until they hold at least ``rollouts`` rollouts."""
    taken: list[Trunk] = []
    while sum(len(trunk.branches) for trunk in taken) < rollouts:
        taken.append(trunks[len(taken) % len(trunks)])
    return taken


def _sizes(config: Config, trunks: list[Trunk]) -> PlannedSizes:
    forks, lengths = ([[branch[i] for branch in trunk.branches] for trunk in trunks] for i in (0, 1))
    return planned_sizes(forks, lengths, owns_of(config, forks))


def _planned(config: Config, trunks: list[Trunk], shards: int, *, halves: bool = True) -> Plan:
    forks, lengths, _ = _sizes(config, trunks)
    tokens, longest = config.training.micro_batch_tokens, config.rollout.max_response_tokens
    return plan_rows(forks, lengths, tokens=tokens, shards=shards, fixed=None, halves=halves, longest=longest)


def _padded(plan: Plan) -> int:
    return sum(shape.positions for _, shape in plan)


def seen_positions(shape: RowShape) -> float:
    """Positions that a position of a row attends to on average, those that masks hide included."""
    _, trunk, lanes, length, window = shape
    pairs = trunk * trunk + lanes * length * (length * min(window, lanes) + trunk)
    return pairs / (trunk + lanes * length)


def _seen(plan: Plan) -> float:
    return sum(seen_positions(shape) * shape.positions for _, shape in plan) / max(_padded(plan), 1)


def largest_micro_batch(config: Config, shards: int) -> RowShape:
    """The micro-batch with the most positions for the worst lengths and anchors; no row holds half a trunk."""
    cap = config.rollout.max_response_tokens
    trunks = training_trunks(config, cap, extreme_anchors(config.explore.num_anchors, cap))
    tokens = sum(length for trunk in trunks for _, length in trunk.branches)
    enough = 1 + math.ceil(max(config.training.micro_batch_tokens, shards * cap) / tokens)
    plan = _planned(config, trunks * enough, shards, halves=False)
    return max((shape for _, shape in plan), key=lambda shape: shape.positions)


def step_amounts(config: Config, assumed: Assumptions, shards: int, *, scores: bool = True) -> Amounts:
    """The amounts that a step samples, prefills and trains; ``shards`` is the number of training batch shards.

    ``scores=False`` leaves the scoring pass out, whose rows take most of the time to plan.
    """
    explore, rollout, training = config.explore, config.rollout, config.training
    response, prompt = assumed.response_tokens, config.data.max_prompt_tokens
    forks = even_anchors(explore.num_anchors, response)
    per_prompt = training_trunks(config, response, forks)
    prompts = training.batch_rollouts / sum(len(t.branches) for t in per_prompt) / assumed.kept_share
    expanded = prompts * assumed.kept_share * bases_per_prompt(config)
    starts = [0, *forks] if explore.initial_state == "fresh" else forks
    mini = _first(per_prompt, training.mini_batch_rollouts)
    to_score = _first(per_prompt, training.batch_rollouts)
    if config.advantage.base_estimator != "gae" and not reads_old_logprobs(config):
        to_score = to_score[len(mini) :]  # the first mini-batch has its old log-probs from its gradient
    scored = _planned(config, to_score, shards) if scores and to_score else []
    packed = _planned(config, mini, shards)
    branches = [branch for trunk in mini for branch in trunk.branches]
    new = sum(length for _, length in branches)
    in_lanes = sum(map(sum, _sizes(config, mini).lengths))
    passes = max(training.batch_rollouts // training.mini_batch_rollouts, 1) * training.epochs
    return Amounts(
        prompts=prompts,
        base_tokens=prompts * rollout.rollouts_per_prompt * response,
        explored_tokens=expanded * explore.rollouts_per_state * sum(response - f for f in starts),
        explored_rollouts=expanded * explore.rollouts_per_state * len(starts),
        prefill_positions=prompts * prompt,
        trained_rollouts=training.batch_rollouts,
        loss_tokens=passes * new,
        trained_positions=passes * (in_lanes + sum(row.filled for rows, _ in packed for row in rows)),
        flattened_positions=passes * sum(fork + length for fork, length in branches),
        padded_positions=passes * _padded(packed),
        micro_batches=passes * len(packed),
        updates=passes,
        score_positions=_padded(scored),
        seen=_seen(packed),
        score_seen=_seen(scored),
    )
