"""The episode of a rollout: the turns that it played, how the episode ended, and metrics of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

Ending = Literal[
    "",  # it has not ended: the response was cut at its cap, or this is a part of it
    "done",  # the environment ended it
    "turns",  # after environment.max_turns turns
    "fault",  # the environment failed
]


@dataclass(frozen=True)
class Turn:
    """A turn that was played: the rollout's own tokens up to the end of the policy's text, and the turn's reward."""

    end: int
    reward: float


@dataclass(frozen=True)
class EpisodeRecord:
    """The part of an episode in a rollout's own tokens.

    Attributes:
      seed: of the environment; branches of a rollout have that of the rollout.
      turns: that were played in these tokens.
      earlier: rewards of the turns before them.
      ending: how it ended.
      right: the environment's own word on its success.
      fault: why it failed.
    """

    seed: int
    turns: tuple[Turn, ...]
    earlier: tuple[float, ...] = ()
    ending: Ending = ""
    right: bool | None = None
    fault: str = ""

    @property
    def rewards(self) -> list[float]:
        """The reward of each turn of the episode, earlier ones included."""
        return [*self.earlier, *(turn.reward for turn in self.turns)]

    def head(self, tokens: int) -> EpisodeRecord:
        """The record of the first ``tokens`` tokens, which are not all of them."""
        return EpisodeRecord(self.seed, tuple(turn for turn in self.turns if turn.end <= tokens), self.earlier)

    def then(self, tokens: int, other: EpisodeRecord) -> EpisodeRecord:
        """This record, of ``tokens`` tokens, continued by that of a branch."""
        turns = (*self.turns, *(Turn(turn.end + tokens, turn.reward) for turn in other.turns))
        return EpisodeRecord(self.seed, turns, self.earlier, other.ending, other.right, other.fault)


def episode_content(record: EpisodeRecord | None) -> dict[str, Any] | None:
    """JSON content of a record, of which `episode_from` makes it again: lists, as JSON has no tuples."""
    if record is None:
        return None
    return asdict(record) | {"turns": [asdict(turn) for turn in record.turns], "earlier": list(record.earlier)}


def episode_from(state: dict[str, Any] | None) -> EpisodeRecord | None:
    """The record of which `episode_content` made JSON content; None without one."""
    if state is None:
        return None
    turns = tuple(Turn(**turn) for turn in state["turns"])
    return EpisodeRecord(**state | {"turns": turns, "earlier": tuple(state["earlier"])})


def episode_metrics(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """The mean number of turns, the share of each ending, and the mean reward of each turn."""
    rewards = [record.rewards for record in records]
    metrics = {"environment/turns": float(np.mean([len(row) for row in rewards]))}
    for ending, name in (("done", "ended"), ("turns", "out_of_turns"), ("", "cut_off"), ("fault", "faults")):
        metrics[f"environment/{name}"] = float(np.mean([record.ending == ending for record in records]))
    for turn in range(max(map(len, rewards))):
        earned = [row[turn] for row in rewards if len(row) > turn]
        metrics[f"environment/reward_turn_{turn + 1}"] = float(np.mean(earned))
    return metrics
