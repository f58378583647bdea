"""Prompts of the next round: drawn, templated and tokenised while the device works on the current round."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.problem import Problem
from fr3e_jax.data.stream import Prompt, PromptStream
from fr3e_jax.loop.texts import Texts
from fr3e_jax.runs.background import Background


@dataclass(frozen=True)
class _Round:
    prompts: list[Prompt]
    position: int  # of the stream after these prompts
    dropped_too_long: int


class PromptFeed:
    """A `PromptStream` read one round ahead.

    ``position`` and ``dropped_too_long`` belong to the prompts handed out, not to the round prepared ahead. A
    checkpoint holds them.

    Args:
      problems: the train split.
      texts: the template and the tokenizer.
      data: the seed of the order, and the longest prompt allowed.
      count: number of prompts of a round.
      background: prepares the next round; None: each round is prepared on request.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        texts: Texts,
        data: DataConfig,
        count: int,
        background: Background | None = None,
    ):
        self.position = self.dropped_too_long = 0
        self._count, self._background = count, background
        self._stream = PromptStream(problems, data.seed, texts.prompt_ids, data.max_prompt_tokens)
        self._ahead: Future[_Round] | None = None
        self._reading = threading.Lock()  # a task's problems need not be thread-safe

    def state_dict(self) -> dict[str, int]:
        """Position and count after the prompts handed out, for a checkpoint."""
        return {"position": self.position, "dropped_too_long": self.dropped_too_long}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the prompts that were handed out when the state was taken."""
        self._ahead = None
        self.position, self.dropped_too_long = state["position"], state["dropped_too_long"]

    def next(self) -> list[Prompt]:
        """The prompts of a round; the background starts on the round after it.

        Raises:
          ValueError: see `PromptStream.next`; or a prompt cannot be tokenised or put into the template.
        """
        ahead, self._ahead = self._ahead, None
        taken = ahead.result() if ahead else self._read(self.position, self.dropped_too_long)
        self.position, self.dropped_too_long = taken.position, taken.dropped_too_long
        if self._background is not None:
            self._ahead = self._background.call(self._read, self.position, self.dropped_too_long)
        return taken.prompts

    def problem_at(self, position: int) -> Problem:
        """The problem at this position of the stream."""
        with self._reading:
            return self._stream.problem_at(position)

    def _read(self, position: int, dropped_too_long: int) -> _Round:
        with self._reading:
            self._stream.position, self._stream.dropped_too_long = position, dropped_too_long
            prompts = self._stream.next(self._count)
            return _Round(prompts, self._stream.position, self._stream.dropped_too_long)
