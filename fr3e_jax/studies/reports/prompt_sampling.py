"""Which steps are read and which of their prompts are shown, where a run is larger than a page may be.

Every choice is seeded by names, so the same run gives the same page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.reports.rollout_trees import STRATA

T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """Limits of a page. Sizes are in bytes; those of the page count base64."""

    read_bytes: int = 240_000_000
    """Compressed rollouts that are read. They take about a processor second for 8 MB."""
    prompt_bytes: int = 11_500_000
    held_out_bytes: int = 3_000_000
    finding_bytes: int = 2_500_000
    metric_records: int = 3000
    """Training steps of the curves."""
    evaluations: int = 40
    problems: int = 2000
    """Rows of the table of held-out problems."""
    prompt_tokens: int = 40_000
    """Tokens that are kept of one prompt; its other rollouts keep their numbers."""
    seed: int = 0


def priority(seed: int, *names: Any) -> int:
    """A number that looks random and depends on the names alone."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of the items, at least 2, at equal distances, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def chosen_steps(sizes: Mapping[int, int], budget: Budget) -> list[int]:
    """The steps to read: all, or one of each of n equal stretches of the run, with the first and the last step.

    Args:
      sizes: compressed bytes of the rollouts of each step.
      budget: its ``read_bytes`` bounds the sum of the sizes, except that at least two steps are read.
    """
    steps = sorted(step for step, size in sizes.items())
    total = sum(sizes.values())
    if total <= budget.read_bytes or len(steps) <= 2:
        return steps
    count = max(2, min(len(steps), int(budget.read_bytes / total * len(steps))))
    inner, places = steps[1:-1], count - 2
    edges = [round(i * len(inner) / places) for i in range(places + 1)] if places else []
    stretches = [inner[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    drawn = [min(stretch, key=lambda step: priority(budget.seed, "step", step)) for stretch in stretches if stretch]
    return [steps[0], *drawn, steps[-1]]


def by_prompt(records: Iterable[RolloutRecord]) -> Iterator[list[RolloutRecord]]:
    """The rollouts of each prompt of a step; those from kept bases, which come last, are prompts of their own."""
    for _, group in groupby(records, key=lambda record: record.prompt_position):
        yield list(group)


@dataclass
class Allowance:
    """Bytes that the steps may spend one after the other; what one step leaves, the next ones have."""

    per_step: float
    left: float = 0.0

    def next_step(self) -> None:
        self.left += self.per_step

    def spend(self, size: int) -> bool:
        """Take ``size`` bytes if they are there."""
        if size > self.left:
            return False
        self.left -= size
        return True


@dataclass(frozen=True)
class Candidate:
    """A prompt that may be shown."""

    priority: int
    summary: dict[str, Any]
    tree: dict[str, Any]
    """The columns of its rollouts."""

    @property
    def size(self) -> int:
        """Bytes that its embedded columns take at least, by experience."""
        return 2 * len(self.tree["token_ids"]) + 10 * len(self.tree["id"])


@dataclass
class Shortlist:
    """The candidates of one step: of each stratum those first in priority, as many bytes as may be spent."""

    bytes_per_stratum: float
    candidates: dict[str, list[Candidate]] = field(default_factory=dict)

    def add(self, stratum: str, candidate: Candidate) -> None:
        waiting = self.candidates.setdefault(stratum, [])
        waiting.append(candidate)
        waiting.sort(key=lambda one: one.priority)
        while len(waiting) > 1 and sum(one.size for one in waiting) > self.bytes_per_stratum:
            waiting.pop()

    def in_turns(self) -> Iterator[Candidate]:
        """One of each stratum, then the second of each, and so on."""
        columns = [self.candidates.get(name, []) for name in STRATA]
        for place in range(max(map(len, columns))):
            for column in columns:
                if place < len(column):
                    yield column[place]
