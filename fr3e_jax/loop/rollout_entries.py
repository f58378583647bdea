"""Entries of stored records: rollouts with their figures. Each process of a run stores a part of a step's entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.rollouts.tool_calls import answer_spans
from fr3e_jax.runs.rollout_parts import Part
from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.session.texts import Texts

TOKEN_BYTES = 17
"""Of a rollout's token: four figures of four bytes, and whether a tool wrote it."""


@dataclass(frozen=True)
class Entry:
    """A rollout of a step, from which `record` makes its record."""

    fields: dict[str, Any]
    rollout: Rollout
    gold: str
    prefix: np.ndarray | None = None
    """The response's tokens before the rollout's own; None for base rollouts."""

    def record(self, texts: Texts | None = None) -> RolloutRecord:
        """The record; without ``texts`` it has token ids alone."""
        rollout = self.rollout
        return RolloutRecord(
            token_ids=np.asarray(rollout.token_ids),
            logprobs=rollout.logprobs,
            entropies=rollout.entropies,
            finished=rollout.finished,
            answers=answer_spans(rollout.tool_written),
            turns=[[turn.end, turn.reward] for turn in rollout.episode.turns] if rollout.episode else [],
            **self.fields,
            **(texts.of_record(self.gold, self.fields["prompt_ids"], rollout, self.prefix) if texts else {}),
        )


def records_of(entries: Iterable[Entry], texts: Texts | None = None) -> Iterator[RolloutRecord]:
    """The record of each entry; its texts are made when it is asked for."""
    return (entry.record(texts) for entry in entries)


def of_part(entries: Iterable[Entry], part: Part) -> list[Entry]:
    """The entries of one part, which has about as many tokens as any other; the parts in order are all entries."""
    entries = list(entries)
    return [entries[n] for n in part.of([len(entry.rollout.token_ids) + 1 for entry in entries])]


def bytes_of(entries: Iterable[Entry]) -> int:
    """Bytes in memory of the arrays of all entries, which are not read for it."""
    return TOKEN_BYTES * sum(len(entry.rollout.token_ids) for entry in entries)
