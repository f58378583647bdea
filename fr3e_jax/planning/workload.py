"""What one training step does, in numbers, and the largest shapes that its programs can be called with.

Two assumptions replace what only a run can tell. For *shapes*, the worst: every response fills the cap, the first
anchor stands at its beginning and the last at its end. For *amounts*, the typical: responses of a given mean length,
anchors evenly spaced, a given share of prompts kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.row_plan import Plan, RowShape, plan_rows
from fr3e_jax.programs.size_buckets import power_of_two, size_bucket

_LEAST_CAPACITY = 16  # of a cache, as `fr3e_jax.rollouts.engine` makes them


@dataclass(frozen=True)
class Assumptions:
    """Of the amounts: mean length of a response in tokens, and the share of prompts that are not rejected."""

    response_tokens: int
    kept_share: float = 1.0


@dataclass(frozen=True)
class DecodeShape:
    """One decoder state: slots and lanes, positions of a trunk, columns of a lane's ring."""

    slots: int
    lanes: int
    trunk_capacity: int
    capacity: int
    promotable: bool


@dataclass(frozen=True)
class Amounts:
    """Of one training step (a full batch); tokens and positions of all devices together, padding not counted."""

    prompts: float
    base_tokens: float
    explored_tokens: float
    explored_rollouts: float
    prefill_positions: float
    trained_rollouts: int
    loss_tokens: int
    trained_positions: int  # that pass the network, each shared prefix once per row
    flattened_positions: int  # that would, with every rollout as a sequence of its own
    padded_positions: int
    micro_batches: int
    updates: int
    score_positions: int  # padded; of the pass for the old log-probs

    @property
    def sampled_tokens(self) -> float:
        return self.base_tokens + self.explored_tokens


def base_shape(config: Config, slots: int) -> DecodeShape:
    """Of the base rollouts: where explored, their caches may be promoted, so the lanes keep their hidden states."""
    r = config.rollout
    trunk = size_bucket(config.data.max_prompt_tokens, _LEAST_CAPACITY)
    ring = power_of_two(r.max_response_tokens, _LEAST_CAPACITY)
    return DecodeShape(slots, r.lanes_per_trunk, trunk, ring, config.explore.enabled)


def explore_shape(config: Config, slots: int) -> DecodeShape:
    """Of the rollouts from anchors, whose trunks are whole base rollouts."""
    ring = power_of_two(config.rollout.max_response_tokens, _LEAST_CAPACITY)
    return DecodeShape(slots, config.rollout.lanes_per_trunk, promoted_capacity(config), ring, False)


def promoted_capacity(config: Config) -> int:
    """Positions of a promoted trunk: a prompt and a whole response."""
    return size_bucket(config.data.max_prompt_tokens + config.rollout.max_response_tokens, _LEAST_CAPACITY)


def bases_per_prompt(config: Config) -> int:
    """Base rollouts expanded of a kept prompt."""
    explore = config.explore
    return min(explore.max_correct + explore.max_wrong, config.rollout.rollouts_per_prompt) if explore.enabled else 0


@dataclass(frozen=True)
class Trunk:
    """A trunk that trains: of each of its branches the fork and the number of its own tokens."""

    branches: tuple[tuple[int, int], ...]


def training_trunks(config: Config, response: int, forks: list[int]) -> list[Trunk]:
    """The trunks that one kept prompt gives to training, with responses of ``response`` tokens.

    ``forks``: response tokens before each anchor.
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
    """``count`` anchors that cut a response into blocks of equal length; fewer where it is shorter."""
    return sorted({response * (j + 1) // (count + 1) for j in range(min(count, response - 1))} - {0})


def extreme_anchors(count: int, response: int) -> list[int]:
    """From the first token that can be one to the last: the longest branch and the longest trunk in one row."""
    return sorted({round(x) for x in np.linspace(0, response - 1, max(min(count, response), 1))})


def _first(trunks: list[Trunk], rollouts: int) -> list[Trunk]:
    """Whole trunks, repeated as often as it takes, until so many rollouts are together."""
    taken: list[Trunk] = []
    while sum(len(trunk.branches) for trunk in taken) < rollouts:
        taken.append(trunks[len(taken) % len(trunks)])
    return taken


def _planned(config: Config, trunks: list[Trunk], shards: int, *, halves: bool = True) -> Plan:
    forks, lengths = ([[branch[i] for branch in trunk.branches] for trunk in trunks] for i in (0, 1))
    tokens = config.training.micro_batch_tokens
    return plan_rows(forks, lengths, tokens=tokens, shards=shards, fixed=None, halves=halves)


def _padded(plan: Plan) -> int:
    return sum(shape.positions for _, shape in plan)


def largest_micro_batch(config: Config, shards: int) -> RowShape:
    """The micro-batch with the most positions, of the worst lengths and anchors: none has rows of half a trunk."""
    cap = config.rollout.max_response_tokens
    trunks = training_trunks(config, cap, extreme_anchors(config.explore.num_anchors, cap))
    tokens = sum(length for trunk in trunks for _, length in trunk.branches)
    enough = 1 + math.ceil(max(config.training.micro_batch_tokens, shards * cap) / tokens)
    plan = _planned(config, trunks * enough, shards, halves=False)
    return max((shape for _, shape in plan), key=lambda shape: shape.positions)


def step_amounts(config: Config, assumed: Assumptions, shards: int) -> Amounts:
    """What a step samples, prefills and trains; ``shards`` are those of the training batch."""
    explore, rollout, training = config.explore, config.rollout, config.training
    response, prompt = assumed.response_tokens, config.data.max_prompt_tokens
    forks = even_anchors(explore.num_anchors, response)
    per_prompt = training_trunks(config, response, forks)
    prompts = training.batch_rollouts / sum(len(t.branches) for t in per_prompt) / assumed.kept_share
    expanded = prompts * assumed.kept_share * bases_per_prompt(config)
    starts = [0, *forks] if explore.initial_state == "fresh" else forks
    mini = _first(per_prompt, training.mini_batch_rollouts)
    scored = _planned(config, _first(per_prompt, training.batch_rollouts), shards)
    packed = _planned(config, mini, shards)
    branches = [branch for trunk in mini for branch in trunk.branches]
    new = sum(length for _, length in branches)
    passes = max(training.batch_rollouts // training.mini_batch_rollouts, 1) * training.epochs
    return Amounts(
        prompts=prompts,
        base_tokens=prompts * rollout.rollouts_per_prompt * response,
        explored_tokens=expanded * explore.rollouts_per_state * sum(response - f for f in starts),
        explored_rollouts=expanded * explore.rollouts_per_state * len(starts),
        prefill_positions=prompts * prompt,
        trained_rollouts=training.batch_rollouts,
        loss_tokens=passes * new,
        trained_positions=passes * (new + sum(row.filled for rows, _ in packed for row in rows)),
        flattened_positions=passes * sum(fork + length for fork, length in branches),
        padded_positions=passes * _padded(packed),
        micro_batches=passes * len(packed),
        updates=passes,
        score_positions=_padded(scored),
    )
