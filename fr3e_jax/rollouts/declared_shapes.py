"""The sizes of a run's caches, declared from its recipe."""

from __future__ import annotations

from typing import NamedTuple

from fr3e_jax.configuration.schema import Config
from fr3e_jax.programs.shapes import LEAST_TRUNK, LaneLayout, Shapes
from fr3e_jax.programs.size_buckets import power_of_two, size_bucket
from fr3e_jax.rollouts.schedule import filled_lanes

_SHORT = 256  # tokens; up to it, sizes are multiples of 16, and trunks that hold a response have one size
_TILE = 128  # positions; longer trunks are multiples of it
_LEAST_RING = 64  # columns; a smaller ring saves no time that could be measured
_FEWER_LANES = 0.8  # a layout is worth its programs if it has at most so many of the lanes of the next


def declared_shapes(config: Config) -> Shapes:
    """The shapes of a run but for rows: ``rollout.cache_sizes`` sizes of caches, or without it as many as pay."""
    rollout, prompt = config.rollout, size_bucket(config.data.max_prompt_tokens, LEAST_TRUNK)
    longest = config.data.max_prompt_tokens + rollout.max_response_tokens
    return Shapes(
        slots=rollout.trunk_slots,
        lanes=rollout.lanes_per_trunk,
        chunk=rollout.decode_chunk,
        smaller=_smaller_layouts(config),
        prompt=prompt,
        responses=_trunk_sizes(longest, prompt, rollout.cache_sizes),
        rings=_ring_sizes(rollout.max_response_tokens, rollout.decode_chunk, rollout.cache_sizes),
        promotable=config.explore.enabled,
    )


class CallSize(NamedTuple):
    """The most trunks of a call of the decoder, the most branches of each, and the lanes that these fill."""

    trunks: int
    branches: int
    lanes: int


def base_call(config: Config) -> CallSize:
    """A round of base rollouts."""
    rollouts = config.rollout.rollouts_per_prompt
    return CallSize(config.rollout.prompts_per_round, rollouts, filled_lanes(rollouts, alike=True))


def explore_call(config: Config) -> CallSize:
    """Rollouts from the states of all expanded bases of a round."""
    explore, (prompts, rollouts, _) = config.explore, base_call(config)
    states = explore.num_anchors + (explore.initial_state == "fresh")
    branches = states * explore.rollouts_per_state
    trunks = prompts * min(explore.max_correct + explore.max_wrong, rollouts)
    return CallSize(trunks, branches, filled_lanes(branches, alike=states == 1))


def return_call(config: Config) -> CallSize:
    """Rollouts from the states on kept successes."""
    returns = config.returns
    branches = returns.depths * returns.rollouts
    return CallSize(returns.visits, branches, filled_lanes(branches, alike=returns.depths == 1))


def _smaller_layouts(config: Config) -> tuple[LaneLayout, ...]:
    """Layouts for calls that cannot fill the lanes of the settings, the smallest first."""
    rollout, calls = config.rollout, [base_call(config)]
    calls += [explore_call(config)] * config.explore.enabled + [return_call(config)] * (config.returns.size > 0)
    layouts = [LaneLayout(rollout.trunk_slots, rollout.lanes_per_trunk)]
    for call in sorted(calls, key=lambda call: -call.trunks * call.lanes):
        layout = LaneLayout(min(call.trunks, layouts[0].slots), min(call.lanes, layouts[0].lanes))
        if layout.slots * layout.lanes <= _FEWER_LANES * layouts[0].slots * layouts[0].lanes:
            layouts.insert(0, layout)
    return tuple(layouts[:-1])


def _ring_sizes(response: int, chunk: int, most: int) -> tuple[int, ...]:
    """The largest response, and of that a quarter, a sixteenth, ...; without ``most`` a half, a quarter, ...

    Sizes are multiples of a chunk's window of columns (`fr3e_jax.programs.decode_steps`), so that none cuts it short.
    """
    window = max(LEAST_TRUNK, min(1 << chunk.bit_length() - 1, power_of_two(response)))
    sizes, ratio = [_rounded(response, window) if response <= _SHORT else power_of_two(response)], 4 if most else 2
    while len(sizes) < (most or sizes[0]) and sizes[-1] // ratio >= _LEAST_RING:
        sizes.append(_rounded(sizes[-1] // ratio, window))
    return tuple(reversed(sizes))


def _trunk_sizes(longest: int, prompt: int, most: int) -> tuple[int, ...]:
    """The longest sequence, and of that a quarter, ...; without ``most`` a half. All hold more than ``prompt``."""
    if longest <= _SHORT:
        return (_rounded(longest, LEAST_TRUNK),)
    largest, ratio = _rounded(longest, _TILE), 4 if most else 2
    sizes = [_rounded(largest // ratio**n, LEAST_TRUNK) for n in range(most or 2)]
    return tuple(sorted(size for size in sizes if size > prompt or size == largest))


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
