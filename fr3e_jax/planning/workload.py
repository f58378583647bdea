"""The branches that a recipe trains, and the largest shapes that its programs are called with."""

from __future__ import annotations

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.micro_batch_shapes import declared_rows
from fr3e_jax.programs.decoder_state import DecoderSizes
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.rollouts.declared_shapes import base_call, declared_shapes, explore_call
from fr3e_jax.rollouts.requests import STREAM_NAMES

TrunkBranches = tuple[tuple[int, int], ...]
"""A training trunk: for each branch, its fork and the number of its tokens."""

STOP_IDS = 2  # of a branch, as in most chat models


def decoder_sizes(config: Config, slots: int, *, explore: bool = False) -> DecoderSizes:
    """The largest decoder of base rollouts or, with ``explore``, of rollouts from anchors on whole base rollouts."""
    shapes = declared_shapes(config)
    return DecoderSizes(
        slots=slots,
        lanes=shapes.lanes,
        trunk_capacity=shapes.responses[-1] if explore else shapes.prompt,
        capacity=shapes.rings[-1],
        names=STREAM_NAMES,
        stops=STOP_IDS,
        promotable=shapes.promotable and not explore,
    )


def filled_lanes(config: Config, explore: bool = False) -> int:
    """Lanes of a slot that the branches of a trunk can fill."""
    call = explore_call(config) if explore else base_call(config)
    return min(config.rollout.lanes_per_trunk, call.lanes)


def promoted_positions(config: Config, shards: int) -> int:
    """Positions of a promoted base, which are split over ``shards`` batch shards."""
    capacity = declared_shapes(config).responses[-1]
    return -(-capacity // shards) * shards


def bases_per_prompt(config: Config) -> int:
    """The number of base rollouts that are expanded for each prompt that stays in the batch."""
    explore = config.explore
    return min(explore.max_correct + explore.max_wrong, config.rollout.rollouts_per_prompt) if explore.enabled else 0


def trunks_of_prompt(config: Config, response: int, forks: list[int]) -> list[TrunkBranches]:
    """The training trunks of a prompt with responses of so many tokens; ``forks``: those before each anchor."""
    prompt, explore = config.data.max_prompt_tokens, config.explore
    trunks: list[TrunkBranches] = []
    if not explore.enabled or explore.train_base:
        trunks.append(((prompt, response),) * config.rollout.rollouts_per_prompt)
    if explore.enabled:
        starts = [0, *forks] if explore.initial_state == "fresh" else forks
        trained = explore.rollouts_per_state * explore.train_states
        branches = [(prompt + start, response - start) for start in starts for _ in range(trained)]
        branches += [(prompt, response)] * explore.block_credit
        trunks += [tuple(branches)] * bases_per_prompt(config) * bool(branches)
    return trunks


def even_anchors(count: int, response: int) -> list[int]:
    """``count`` anchors that cut a response into blocks of equal length; fewer if the response is too short."""
    return sorted({response * (j + 1) // (count + 1) for j in range(min(count, response - 1))} - {0})


def largest_micro_batch(config: Config, shards: int, key_cost: float) -> RowShape:
    """The declared micro-batch with the most positions; see `fr3e_jax.learning.micro_batch_shapes.declared_rows`."""
    return max(declared_rows(config, shards, key_cost), key=lambda shape: (shape.positions, shape))
