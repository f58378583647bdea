"""The part of a run that learning depends on, without its decoder, task, grader or files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fr3e_jax.configuration.schema import Config
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.rollouts.noise import Noise

Gather = Callable[[Any], list[Any]]
"""JSON content of this process -> that of all processes (`Processes.gather`)."""


def alone(content: Any) -> list[Any]:
    """`Processes.gather` of a process on its own."""
    return [content]


@dataclass(frozen=True)
class LearningSetup:
    """Settings, noise and sizes that the functions of this room take in place of a session."""

    config: Config
    noise: Noise
    pad_id: int  # token id of unused positions
    vocab_size: int  # of the policy's embedding
    key_cost: float = 0.0  # work to attend to a position, as a part of a position's other work
    rows: tuple[RowShape, ...] = ()  # the shapes of all micro-batches
    shards: int = 1  # of rows
    gather: Gather = alone

    @property
    def loss_temperature(self) -> float:
        """The temperature of the distribution that trains: that of sampling, or 1 if decoding is greedy."""
        return self.config.rollout.temperature or 1.0
