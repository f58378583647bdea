"""The shapes of micro-batches, declared before the run from the lengths that its recipe expects.

A shape costs a compilation of each program that reads rows, so a run has few. They are those with which mini-batches of
expected lengths cost least work. They follow from the recipe and the number of shards alone: a resumed run, every
process and `fr3e compile` declare the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.row_planner import CALL, LEAST_SIZE, PlannedBatch
from fr3e_jax.learning.trained_trunks import owns_of, planned_sizes
from fr3e_jax.objectives.return_depths import probed_depths
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.size_buckets import power_of_two, size_bucket
from fr3e_jax.rollouts.expected_lengths import expected_lengths

WINDOW = 3  # lanes that a token sees where branches lie end to end (docs/developers/performance_notebook.md)
MOST_SHAPES = 6
_FRESH_BESIDE_KEPT = 2  # further ones, for fresh prompts where kept bases have theirs
_WORTH = 0.97  # a further row must leave at most this part of the work
_BATCHES = 6  # mini-batches that shapes are chosen for
_BRANCHES = 1024  # larger mini-batches are cut
_LONG_BRANCH = 2048  # longer branches do not cross lanes: the extra scores would cost more than the gaps
_SHARED_TRUNKS = 256  # trunk positions of a row of several trunks: every lane's token scores all of them
_EACH_LANE = 12  # numbers of lanes up to this are all tried
_TRUNK_STEP = 1024  # most positions between sizes of trunks
_CAPACITIES = 3  # for branches that do not cross lanes: enough for the longest, a half, and a quarter of that
_PROMISING = 12  # rows that are tried beside the first two
_DEPTHS = 0.25, 0.95  # of a kept base's tokens: where most visits continue it
_SPACING = 1 / 16  # of them, between the depths of a visit
_CONTINUED = 0.5, 1.5  # tokens of a continuation, as parts of what the base itself has behind the depth

Kind = Literal["fresh", "kept"]
Sizes = tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]  # forks of each trunk's branches, and their tokens


def declared_rows(config: Config, shards: int, key_cost: float) -> tuple[RowShape, ...]:
    """The shapes of micro-batches of a run.

    Fresh prompts and kept bases have shapes apart: a prompt alone is a short trunk. At most `MOST_SHAPES`, and two more
    with kept bases.

    Args:
      config: the recipe.
      shards: every number of rows is a multiple of it.
      key_cost: see `fr3e_jax.learning.row_planner.plan_rows`.
    """
    cap, prompt = config.rollout.max_response_tokens, config.data.max_prompt_tokens
    rollouts, tokens = min(config.training.mini_batch_rollouts, _BRANCHES), config.training.micro_batch_tokens

    def chosen(kind: Kind, trunk: int, most: int) -> tuple[RowShape, ...]:
        expected = expected_mini_batches(config, min(_BATCHES, 2 * _BRANCHES // rollouts), rollouts, kind)
        batches = tuple(tuple(tuple(map(tuple, sizes)) for sizes in batch) for batch in expected)  # hashable
        return _chosen_once(batches, (trunk, cap), tokens=tokens, most_shapes=most, shards=shards, key_cost=key_cost)

    longest = prompt + cap - 1
    fresh_trunk = longest if config.explore.enabled else prompt
    if not config.returns.size:
        return chosen("fresh", fresh_trunk, MOST_SHAPES)
    shapes = (*chosen("fresh", fresh_trunk, _FRESH_BESIDE_KEPT), *chosen("kept", longest, MOST_SHAPES))
    return tuple(dict.fromkeys(shapes))


def chosen_shapes(
    batches: Sequence[Sizes],
    longest: tuple[int, int],
    *,
    tokens: int,
    most_shapes: int = MOST_SHAPES,
    shards: int = 1,
    key_cost: float = 0.0,
) -> tuple[RowShape, ...]:
    """At most ``most_shapes`` shapes with which mini-batches like these cost least.

    Each row is declared one to a shard and in a larger number. Full micro-batches are then large, and few rows are
    empty.

    Args:
      batches: mini-batches.
      longest: positions of the longest trunk and tokens of the longest branch; the first row holds both.
      tokens: positions of a micro-batch, padding counted; only the smallest row of a size may exceed it.
      most_shapes: see above.
      shards, key_cost: see `declared_rows`.
    """
    planned = [PlannedBatch(*batch) for batch in batches]

    def work(shapes: Sequence[RowShape]) -> float:
        return sum(batch.cheapest(shapes, key_cost, CALL * tokens)[0] for batch in planned)

    positions = max(tokens // shards, 1)
    rows = _tried_rows(*longest, positions, min(min(map(min, forks)) for forks, _ in batches))
    chosen: tuple[RowShape, ...] = ()
    least, tried = math.inf, [row for row in rows if row.holds(*longest)]
    while tried:
        pairs = {
            tuple(row._replace(rows=shards * count) for count in sorted({1, most}))
            for row in tried
            for most in _row_numbers(max(positions // row.positions, 1))
        }
        works = {pair: work((*chosen, *pair)) for pair in pairs if len(chosen) + len(pair) <= most_shapes}
        ranked = sorted(works, key=lambda pair: (works[pair], pair))
        if not ranked or works[ranked[0]] > _WORTH * least:
            break
        if chosen:
            rows = list(dict.fromkeys(pair[0].row for pair in ranked))[:_PROMISING]
        chosen, least = (*chosen, *ranked[0]), works[ranked[0]]
        tried = [row for row in rows if row != chosen[-1].row]
    return chosen


_chosen_once = lru_cache(chosen_shapes)  # a plan tries many settings, of which few change rows


def _tried_rows(trunk: int, branch: int, positions: int, least_fork: int) -> list[RowShape]:
    """Rows of at most ``positions`` positions, and of each size the smallest in any case."""
    sizes = [size for size in _ladder(LEAST_SIZE, max(trunk - 1, _SHARED_TRUNKS)) if size >= least_fork]
    if branch <= min(_LONG_BRANCH, (positions - trunk) // 2):
        window, capacities = WINDOW, [size_bucket(-(-(branch - 1) // (WINDOW - 1)), LEAST_SIZE)]
        fewest = -(-branch // capacities[0])
    else:
        window, fewest = 1, 1
        capacities = [size_bucket(-(-branch >> n), LEAST_SIZE) for n in range(_CAPACITIES)]
    return [
        RowShape(1, size, lanes, capacity, window)
        for size in sorted({*sizes, _trunk_bucket(trunk)})
        for capacity in capacities
        for lanes in _lane_numbers(fewest, max((positions - size) // capacity, fewest))
    ]


def _ladder(least: int, most: int) -> list[int]:
    """4, 6, 8, 12, 16, 24, ... from ``least`` to ``most``."""
    sizes, size = [], size_bucket(least)
    while size <= most:
        sizes.append(size)
        size = size_bucket(size + 1)
    return sizes


def _lane_numbers(least: int, most: int) -> list[int]:
    """Each number up to `_EACH_LANE`, then 16, 24, 32, ..., and the most."""
    return sorted({*range(least, min(most, _EACH_LANE) + 1), *_ladder(max(least, _EACH_LANE), most), most})


def _row_numbers(most: int) -> list[int]:
    """Rows of a micro-batch and shard: as many as fit, a half of that, a quarter, ..."""
    return sorted({-(-most // (1 << n)) for n in range(most.bit_length())})


def _trunk_bucket(size: int) -> int:
    """``size`` trunk positions, rounded up to a multiple of an eighth of the next power of two, at most of 1024."""
    step = min(max(power_of_two(size) // 8, LEAST_SIZE), _TRUNK_STEP)
    return -(-size // step) * step


def expected_mini_batches(config: Config, count: int, rollouts: int, kind: Kind) -> Iterator[Sizes]:
    """Mini-batches of random lengths, of about ``rollouts`` rollouts of fresh prompts or continuations of kept bases.

    A recipe that states no mean length gets means from a third of the cap up. The rollouts of a mini-batch vary, too: a
    run has other lengths than its recipe expects.
    """
    random = np.random.default_rng(0)
    mean, cap = config.rollout.expected_tokens, config.rollout.max_response_tokens
    for batch in range(count):
        expected = expected_lengths(mean or max(cap * (count + 2 * batch + 1) // (3 * count), 1), cap)
        trunks: list[list[tuple[int, int]]] = []
        while sum(map(len, trunks)) < rollouts * (3 + batch % 3) / 4:
            trunks += _TRUNKS[kind](config, expected, random)
        forks, lengths = ([[branch[n] for branch in trunk] for trunk in trunks] for n in (0, 1))
        yield planned_sizes(forks, lengths, owns_of(config.explore, forks))[:2]


def _trunks_of_a_prompt(
    config: Config, expected: np.ndarray, random: np.random.Generator
) -> Iterator[list[tuple[int, int]]]:
    """The training trunks of one fresh prompt: (fork, tokens) of the branches of each."""
    rollout, explore, prompt = config.rollout, config.explore, _prompt_length(config, random)

    def length(before: int = 0) -> int:
        return max(int(random.choice(expected)) - before, 1)

    if not explore.enabled or explore.train_base:
        yield [(prompt, length()) for _ in range(rollout.rollouts_per_prompt)]
    for _ in range(max(min(explore.max_correct + explore.max_wrong, rollout.rollouts_per_prompt), 1) * explore.enabled):
        base = length()
        states = sorted(random.integers(0, base, explore.num_anchors).tolist())
        if explore.initial_state == "fresh":
            states = [0, *states]
        trained = _mixed(states, random) if explore.train_states else []
        branches = [(prompt + state, length(state)) for state in trained for _ in range(explore.rollouts_per_state)]
        yield branches + [(prompt, base)] * (explore.block_credit or not explore.train_states)


def _trunks_of_a_kept_base(
    config: Config, expected: np.ndarray, random: np.random.Generator
) -> Iterator[list[tuple[int, int]]]:
    """The training trunk of one visit to a kept base, as `_trunks_of_a_prompt`.

    The depths of a visit lie close together, and seldom near the prompt, or are fixed ones.
    """
    returns, cap = config.returns, config.rollout.max_response_tokens
    prompt, base = _prompt_length(config, random), max(int(random.choice(expected)), 1)
    middle, spacing = random.uniform(*_DEPTHS) * base, _SPACING * base
    if returns.depth_rule == "fixed":
        middle, spacing = base / 2, base / (returns.depths + 1)
    depths = probed_depths(middle, spacing, returns.depths, base).tolist()
    yield [
        (prompt + depth, max(min(int((base - depth) * random.uniform(*_CONTINUED)), cap - depth), 1))
        for depth in _mixed(depths, random)
        for _ in range(returns.rollouts)
    ]


_TRUNKS = {"fresh": _trunks_of_a_prompt, "kept": _trunks_of_a_kept_base}


def _prompt_length(config: Config, random: np.random.Generator) -> int:
    longest = config.data.max_prompt_tokens
    return int(random.integers(-(-longest // 2), longest + 1))


def _mixed(states: Sequence[int], random: np.random.Generator) -> list[int]:
    """Some of the states: the rollouts of the others are all right or all wrong."""
    return sorted(random.permutation(states)[: random.integers(1, len(states) + 1)].tolist())
