"""How much of their time lanes sample: the run's own schedule, for responses of expected lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fr3e_jax.configuration.schema import Config
from fr3e_jax.planning.workload import DecodeShape, base_shape, bases_per_prompt, explore_shape
from fr3e_jax.rollouts.expected_lengths import expected_lengths
from fr3e_jax.rollouts.layout import Layout, fitted_layout, simulated, step_cost

_ROUNDS = 2  # that are drawn; of more than `_MANY` branches, one
_MANY = 4096
_LEVELS = 128  # lengths that are told apart: a schedule of single tokens would take seconds


@dataclass(frozen=True)
class LaneUse:
    """The tokens of a decode step, as a share of the settings' lanes."""

    decode: float  # of base rollouts
    explore: float = 1.0  # of rollouts from anchors


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
    base = _share(
        *sizes, rollout.prompts_per_round, rollout.rollouts_per_prompt, 0, _fits(config, base_shape, slots, shards)
    )
    if not explore.enabled:
        return LaneUse(base)
    states = explore.num_anchors + (explore.initial_state == "fresh")
    trunks = rollout.prompts_per_round * bases_per_prompt(config)
    sizes = (*sizes, trunks, explore.rollouts_per_state, states)
    return LaneUse(base, _share(*sizes, _fits(config, explore_shape, slots, shards)))


class _Fits(NamedTuple):
    """What a fitted layout depends on, beside its branches."""

    trunk_capacity: int
    capacity: int
    shards: int


def _fits(config: Config, shape_of: Callable[[Config, int], DecodeShape], slots: int, shards: int) -> _Fits | None:
    """None: calls have the layout of the settings."""
    if config.rollout.lane_layout != "fitted":
        return None
    shape = shape_of(config, slots)
    return _Fits(shape.trunk_capacity, shape.capacity, shards)


@lru_cache(maxsize=1024)
def _share(
    full: Layout, chunk: int, mean: int, cap: int, trunks: int, branches: int, states: int, fits: _Fits | None
) -> float:
    """Tokens by steps of all lanes of ``full``, in rounds of ``trunks`` with ``branches`` from each state.

    ``states`` 0: they leave the prompt.
    """
    random, expected, unit = np.random.default_rng(0), expected_lengths(mean, cap), -(-cap // _LEVELS)
    tokens = steps = 0
    for _ in range(_ROUNDS if trunks * branches * max(states, 1) <= _MANY else 1):
        drawn = [list(_branches(random, expected, cap, branches, states)) for _ in range(trunks)]
        limits, lengths = ([[branch[i] for branch in trunk] for trunk in drawn] for i in (0, 1))
        tokens += sum(map(sum, lengths))
        layout = full if fits is None else fitted_layout(full, limits, *fits, step_cost=step_cost(full, True))
        in_units = [[[-(-length // unit) for length in row] for row in rows] for rows in (limits, lengths)]
        steps += unit * simulated(*in_units, layout, -(-chunk // unit)).steps
    return min(tokens / (steps * full.total), 1.0)


def _branches(
    random: np.random.Generator, expected: np.ndarray, cap: int, branches: int, states: int
) -> Iterator[tuple[int, int]]:
    """(limit, length) of the branches of a trunk; they continue a response after a random number of its tokens."""
    base = int(random.choice(expected))
    for before in random.integers(0, base, states).tolist() if states else [0]:
        longer = expected[expected > before]
        for length in random.choice(longer, branches).tolist():
            yield cap - before, length - before
