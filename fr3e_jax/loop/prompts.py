"""Prompts of the next round: drawn, templated and tokenised while the device works on the current round."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.stream import Prompt, PromptStream
from fr3e_jax.problem import Problem
from fr3e_jax.runs.background import Background
from fr3e_jax.session.texts import Texts

MOST_LOOKED_AT = 200_000  # problems looked through at the start of a run
MOST_SHOWN = 5  # dropped prompts that are named at once


@dataclass(frozen=True)
class _Drawn:
    prompt: Prompt
    position: int  # of the stream after this prompt
    dropped: tuple[int, int]  # too long, unspeakable: since the start of the run
    complaints: list[str]  # about prompts dropped before it


class PromptFeed:
    """A `PromptStream` read one round ahead.

    ``position`` and the counts of dropped prompts belong to the prompts handed out, not to the round prepared ahead. A
    checkpoint holds them. ``dropped_unspeakable`` counts prompts that cannot be encoded.

    Args:
      problems: the train split.
      texts: the template and the tokenizer.
      data: the seed of the order, and the longest prompt allowed.
      count: number of prompts of a round, unless `next` is told another one.
      background: prepares as many for the next round; None: each round is prepared on request.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        texts: Texts,
        data: DataConfig,
        count: int,
        background: Background | None = None,
    ):
        self.position = self.dropped_too_long = self.dropped_unspeakable = 0
        self.complaints: list[str] = []  # of the last round: a line for each prompt that could not be encoded
        self._problems, self._texts = problems, texts
        self._count, self._background = count, background
        self._stream = PromptStream(problems, data.seed, texts.prompt_ids, data.max_prompt_tokens)
        self._ahead: Future[list[_Drawn]] | None = None
        self._reading = threading.Lock()  # a task's problems need not be thread-safe

    def state_dict(self) -> dict[str, int]:
        """Position and counts after the prompts handed out, for a checkpoint."""
        return {
            "position": self.position,
            "dropped_too_long": self.dropped_too_long,
            "dropped_unspeakable": self.dropped_unspeakable,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the prompts that were handed out when the state was taken."""
        self._ahead = None
        self.position, self.dropped_too_long = state["position"], state["dropped_too_long"]
        self.dropped_unspeakable = state.get("dropped_unspeakable", 0)  # absent from older checkpoints

    def next(self, count: int | None = None) -> list[Prompt]:
        """The next ``count`` prompts (None: a round); the background prepares those after them.

        Raises:
          ValueError: see `PromptStream.next`.
        """
        ahead, self._ahead = self._ahead, None
        count = self._count if count is None else count
        drawn = self._filled(ahead.result() if ahead else [], count, self.position, self._dropped())
        taken, rest = drawn[:count], drawn[count:]
        self.position, self.complaints = taken[-1].position, [line for one in taken for line in one.complaints]
        self.dropped_too_long, self.dropped_unspeakable = taken[-1].dropped
        if self._background is not None:
            self._ahead = self._background.call(self._filled, rest, self._count, self.position, self._dropped())
        return [one.prompt for one in taken]

    def metrics(self) -> dict[str, float]:
        """The numbers of prompts dropped since the start of the run."""
        return {
            "data/dropped_too_long": self.dropped_too_long,
            "data/dropped_unspeakable": self.dropped_unspeakable,
        }

    def unspeakable(self) -> list[str]:
        """A line for each problem whose question has a character that no token spells.

        Sets of more than 200,000 problems are not looked through: their problems may be computed on access.
        """
        return unspeakable(self._problems, self._texts) if len(self._problems) <= MOST_LOOKED_AT else []

    def _dropped(self) -> tuple[int, int]:
        return self.dropped_too_long, self.dropped_unspeakable

    def problem_at(self, position: int) -> Problem:
        """The problem at this position of the stream."""
        with self._reading:
            return self._stream.problem_at(position)

    def _filled(self, drawn: list[_Drawn], count: int, position: int, dropped: tuple[int, int]) -> list[_Drawn]:
        """``drawn`` and more prompts, ``count`` in all; ``position`` and ``dropped`` are those before ``drawn``."""
        stream, drawn = self._stream, list(drawn)
        with self._reading:
            stream.position = drawn[-1].position if drawn else position
            stream.dropped_too_long, stream.dropped_unspeakable = drawn[-1].dropped if drawn else dropped
            while len(drawn) < count:
                stream.complaints = []
                (prompt,) = stream.next(1)
                counts = (stream.dropped_too_long, stream.dropped_unspeakable)
                drawn.append(_Drawn(prompt, stream.position, counts, stream.complaints))
        return drawn


def unspeakable(problems: Iterable[Problem], texts: Texts) -> list[str]:
    """A line for each problem whose question has a character that no token spells."""
    found = []
    for problem in problems:
        try:
            texts.codec.check_characters(problem.prompt)
        except ValueError as error:
            found.append(f"problem {problem.id!r}: {error}")
    return found


def summary_of(complaints: Sequence[str], what: str) -> list[str]:
    """Lines for the console: how many prompts of ``what`` are dropped, and the first few."""
    if not complaints:
        return []
    more = [f"  and {len(complaints) - MOST_SHOWN} more"] if len(complaints) > MOST_SHOWN else []
    head = f"{len(complaints)} prompts of the {what} cannot be encoded and are dropped:"
    return [head, *(f"  {line}" for line in complaints[:MOST_SHOWN]), *more]
