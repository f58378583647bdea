"""Limits of a page, and seeded choices where a run is larger: the same run gives the same page."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class PageLimits:
    """Limits of what is read and shown. Sizes are in bytes; those of the page count base64."""

    read_bytes: int = 240_000_000
    """Compressed rollouts that are read. They take about a processor second for 8 MB."""
    prompt_bytes: int = 9_000_000
    held_out_bytes: int = 850_000
    finding_bytes: int = 2_500_000
    metric_records: int = 3000
    """Training steps of the curves."""
    evaluations: int = 40
    problems: int = 2000
    """Rows of the table of held-out problems."""
    prompt_tokens: int = 40_000
    """Tokens that are shown of one prompt; its other rollouts have their numbers."""
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


def in_turns(items: Iterable[T], kind: Callable[[T], str]) -> list[T]:
    """The first item of each kind in their order, then the second of each, and so on."""
    turns: Counter[str] = Counter()

    def turn(item: T) -> int:
        turns[kind(item)] += 1
        return turns[kind(item)]

    return sorted(items, key=turn)
