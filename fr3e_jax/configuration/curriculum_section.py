"""Settings of a curriculum: prompts drawn by how often they are solved."""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.configuration.options import option


@dataclass
class CurriculumConfig:
    """Prompts drawn by their running success rate, after a first pass over all of them."""

    bounds: list[float] = option(
        [],
        "rising success rates between pools, the hardest first: [0.05,0.9] makes three; a rate on a bound is above it",
        gt=0,
        le=1,
    )
    shares: list[float] = option(
        [], "share of each pool in the prompts, in any unit; an empty pool leaves its share to the others", gt=0
    )
    retire_after: int = option(
        0, "times in a row that all rollouts of a prompt are right before it rests; 0: off", ge=0
    )
    retire_epochs: int = option(1, "epochs (as many prompts as there are problems) for which it rests", ge=1)

    @property
    def enabled(self) -> bool:
        """true if prompts are drawn by success."""
        return bool(self.shares) or self.retire_after > 0
