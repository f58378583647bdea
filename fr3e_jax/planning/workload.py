"""The branches that a recipe trains, and the largest shapes that its programs are called with."""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.declared_rows import declared_rows
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.rollouts.declared_shapes import declared_shapes

TrunkBranches = tuple[tuple[int, int], ...]
"""A training trunk: for each branch, its fork and the number of its tokens."""


@dataclass(frozen=True)
class DecodeShape:
    """The sizes of one decoder state."""

    slots: int
    lanes: int  # of each slot
    trunk_capacity: int  # positions of a trunk
    capacity: int  # columns of a lane's ring
    promotable: bool  # the lanes keep their hidden states, so that their caches can be promoted to trunks


def base_shape(config: Config, slots: int) -> DecodeShape:
    """The decoder state of the base rollouts. Exploration may promote their caches, so it makes them promotable."""
    r = config.rollout
    trunk = declared_shapes(config).prompt
    return DecodeShape(slots, r.lanes_per_trunk, trunk, _largest_ring(config), config.explore.enabled)


def explore_shape(config: Config, slots: int) -> DecodeShape:
    """The decoder state of the rollouts from anchors. Their trunks are whole base rollouts."""
    return DecodeShape(slots, config.rollout.lanes_per_trunk, promoted_capacity(config), _largest_ring(config), False)


def _largest_ring(config: Config) -> int:
    return declared_shapes(config).rings[-1]


def promoted_capacity(config: Config) -> int:
    """Positions of a promoted trunk, which holds a prompt and a whole response."""
    return declared_shapes(config).responses[-1]


def bases_per_prompt(config: Config) -> int:
    """The number of base rollouts that are expanded for each prompt that stays in the batch."""
    explore = config.explore
    return min(explore.max_correct + explore.max_wrong, config.rollout.rollouts_per_prompt) if explore.enabled else 0


def trunks_of_prompt(config: Config, response: int, forks: list[int]) -> list[TrunkBranches]:
    """The training trunks of one prompt.

    Args:
      config: the recipe.
      response: tokens of each response.
      forks: for each anchor, the response tokens before it.
    """
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
    """The declared micro-batch with the most positions; see `fr3e_jax.learning.declared_rows.declared_rows`."""
    return max(declared_rows(config, shards, key_cost), key=lambda shape: (shape.positions, shape))
