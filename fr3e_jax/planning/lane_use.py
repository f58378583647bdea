"""How much of their time lanes sample, and how much of their caches a step reads, by the run's own schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.workload import DecodeShape, base_shape, bases_per_prompt, explore_shape
from fr3e_jax.policy.decode_kernel import LARGEST_BLOCK
from fr3e_jax.rollouts.expected_lengths import expected_lengths
from fr3e_jax.rollouts.layout import Layout, fitted_layout, simulated, step_cost

_ROUNDS = 2  # that are drawn; of more than `_MANY` branches, one
_MANY = 4096
_LEVELS = 128  # lengths that are told apart: a schedule of single tokens would take seconds


class CacheReads(NamedTuple):
    """What a decode step reads of its caches where it reads blocks that are filled, as a share of their positions."""

    trunks: float = 1.0
    rings: float = 0.5  # of all lanes, of which idle ones read nothing


class _Use(NamedTuple):
    tokens: float  # of a step, as a share of the settings' lanes
    reads: CacheReads


@dataclass(frozen=True)
class LaneUse:
    """The tokens of a decode step, as a share of the settings' lanes, and what it reads of the caches."""

    decode: float  # of base rollouts
    explore: float = 1.0  # of rollouts from anchors
    decode_reads: CacheReads = CacheReads()
    explore_reads: CacheReads = CacheReads()


def lane_use(config: Config, slots: int, mean: int, shards: int = 1) -> LaneUse:
    """The use of lanes in rounds of a run on accelerators.

    A round waits for its longest response, so a long tail of lengths leaves lanes idle: with a mean of an eighth of the
    cap, a round of as many rollouts as lanes takes about four times as long as lanes that never idle would. With
    ``rollout.lane_layout=fitted`` each call has the layout that the engine would choose for it. A step counts whole
    also where it has fewer lanes, because it reads the weights all the same.

    Args:
      config: the recipe.
      slots: of the decoder.
      mean: tokens of a response; lengths are distributed as by `expected_lengths`.
      shards: over which slots are split.
    """
    rollout, explore = config.rollout, config.explore
    sizes = (Layout(slots, rollout.lanes_per_trunk), rollout.decode_chunk, mean, rollout.max_response_tokens)
    prompt = config.data.max_prompt_tokens
    base = _of_rounds(
        *(*sizes, prompt, rollout.prompts_per_round, rollout.rollouts_per_prompt, 0),
        _caches(config, base_shape, slots, shards),
    )
    if not explore.enabled:
        return LaneUse(base.tokens, decode_reads=base.reads)
    states = explore.num_anchors + (explore.initial_state == "fresh")
    trunks = rollout.prompts_per_round * bases_per_prompt(config)
    sizes = (*sizes, prompt, trunks, explore.rollouts_per_state, states)
    explored = _of_rounds(*sizes, _caches(config, explore_shape, slots, shards))
    return LaneUse(base.tokens, explored.tokens, base.reads, explored.reads)


class _Caches(NamedTuple):
    """Sizes of the caches, and whether a call's layout is fitted to its branches."""

    trunk_capacity: int
    capacity: int
    shards: int
    fitted: bool


def _caches(config: Config, shape_of: Callable[[Config, int], DecodeShape], slots: int, shards: int) -> _Caches:
    shape = shape_of(config, slots)
    return _Caches(shape.trunk_capacity, shape.capacity, shards, config.rollout.lane_layout == "fitted")


@lru_cache(maxsize=1024)
def _of_rounds(
    full: Layout,
    chunk: int,
    mean: int,
    cap: int,
    prompt: int,
    trunks: int,
    branches: int,
    states: int,
    caches: _Caches,
) -> _Use:
    """The use of ``full`` in rounds of ``trunks`` with ``branches`` from each state.

    ``states`` 0: they leave the prompt, which has ``prompt`` tokens. Trunks count as if their slots were never empty.
    """
    random, expected, unit = np.random.default_rng(0), expected_lengths(mean, cap), -(-cap // _LEVELS)
    tokens = steps = columns = forks = rounds = 0
    for _ in range(_ROUNDS if trunks * branches * max(states, 1) <= _MANY else 1):
        drawn = [list(_branches(random, expected, cap, branches, states)) for _ in range(trunks)]
        limits, lengths = ([[branch[i] for branch in trunk] for trunk in drawn] for i in (0, 1))
        tokens += sum(map(sum, lengths))
        columns += sum(columns_read(length, caches.capacity) for row in lengths for length in row)
        longest = [prompt + (cap - min(row) if states else 0) for row in limits]
        forks += sum(_in_blocks(fork, caches.trunk_capacity) for fork in longest)
        rounds += 1
        layout = full
        if caches.fitted:
            layout = fitted_layout(full, limits, *caches[:3], step_cost=step_cost(full, True))
        in_units = [[[-(-length // unit) for length in row] for row in rows] for rows in (limits, lengths)]
        steps += unit * simulated(*in_units, layout, -(-chunk // unit)).steps
    of_trunks = forks / (rounds * trunks * caches.trunk_capacity)
    of_rings = columns / (steps * full.total * caches.capacity)
    return _Use(min(tokens / (steps * full.total), 1.0), CacheReads(min(of_trunks, 1.0), min(of_rings, 1.0)))


def _in_blocks(positions: int, capacity: int) -> int:
    """``positions`` rounded up to whole blocks of the kernel, at most ``capacity``."""
    block = min(LARGEST_BLOCK, capacity)
    return min(-(-positions // block) * block, capacity)


def columns_read(length: int, capacity: int, largest: int = LARGEST_BLOCK) -> int:
    """The columns of its ring that a branch of ``length`` tokens reads in all of its steps, in whole blocks.

    A branch begins anywhere in its ring, so t columns lie in 1 + (t - 1) / block blocks on average.
    """
    block = min(largest, capacity)
    part = min(length, capacity - block + 1)  # steps that do not read all blocks
    return part * (block - 1) + part * (part + 1) // 2 + (length - part) * capacity


def _branches(
    random: np.random.Generator, expected: np.ndarray, cap: int, branches: int, states: int
) -> Iterator[tuple[int, int]]:
    """(limit, length) of the branches of a trunk; they continue a response after a random number of its tokens."""
    base = int(random.choice(expected))
    for before in random.integers(0, base, states).tolist() if states else [0]:
        longer = expected[expected > before]
        for length in random.choice(longer, branches).tolist():
            yield cap - before, length - before
