"""How many programs that pass through the network's layers a run compiles, and how long that takes.

Only these count: a copy of a cache or an optimizer step is compiled in seconds. Their number is bounded where
``training.row_shapes`` and ``rollout.cache_sizes`` bound it; otherwise it follows from the lengths of a run, and grows
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config


@dataclass(frozen=True)
class Compilations:
    """The most programs of each class; None: as many as the lengths ask for. Seconds are 0 where none were measured."""

    programs: dict[str, int | None]
    seconds: float = 0.0  # of all of them one after another, by the time of the one that was compiled here

    @property
    def total(self) -> int | None:
        counts = list(self.programs.values())
        return None if None in counts else sum(counts)


def layer_programs(config: Config, compile_seconds: Mapping[str, float] | None = None) -> Compilations:
    """The programs of a run of ``fr3e train``.

    Args:
      config: the recipe.
      compile_seconds: of one program of a class, by the names of `fr3e_jax.planning.targets.PROGRAMS`.
    """
    rows, rings = config.training.row_shapes or None, config.rollout.cache_sizes or None
    trunks = rings and rings * rings  # an explored state has a trunk and rings
    branches = config.explore.enabled or config.returns.size > 0
    counts = {"prefill": (rings or 0) + 1 if config.returns.size else 1, "decode": rings}
    if branches:
        counts["explore"] = trunks
    if config.explore.enabled and config.evaluation.every:
        counts["evaluation"] = rings  # decodes without the hidden states that promotion needs
    counts |= {"score": rows, "accumulate": rows}
    took = compile_seconds or {}
    spent = sum(
        (count or 0) * took.get({"evaluation": "decode"}.get(name, name), 0.0) for name, count in counts.items()
    )
    return Compilations(counts, spent)
