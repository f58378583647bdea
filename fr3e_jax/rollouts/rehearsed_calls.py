"""Tools and environments of a rehearsal: the decoder gets their table, and no branch calls them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from fr3e_jax.rollouts.episodes import Episodes
from fr3e_jax.rollouts.requests import Key, Rollout, TrunkRequest
from fr3e_jax.rollouts.tool_calls import Toolbox


class RehearsedTools:
    """Stands in for a `Toolbox` or for `Episodes` and counts nothing.

    Args:
      known: that of the run; nothing of it changes.
    """

    def __init__(self, known: Toolbox | Episodes):
        self.table, self.off = known.table, known.calls.off
        self.counts: Counter[str] = Counter()

    def take_counts(self) -> Counter[str]:
        """No call."""
        return Counter()

    def answering(self, requests: Sequence[TrunkRequest]) -> RehearsedCalls:
        """The calls of one `RolloutEngine.sample`, of which there are none."""
        return RehearsedCalls(self.table, self.off)

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """No metrics."""
        return {}

    held_out_metrics = metrics


class RehearsedCalls:
    """`fr3e_jax.rollouts.requests.Calls` of a tool that no branch calls, in whose table no token opens a call.

    Args:
      table: of the run's tool or environment.
      off: the state of ``table`` that recognises no call.
    """

    at_once = False

    def __init__(self, table: jax.Array, off: int):
        self.table, self._off = table, off

    def begin(self, key: Key) -> int:
        return self._off

    def ask(self, key: Key, token_ids: np.ndarray) -> None:
        raise RuntimeError(f"branch {key} completed a call in a rehearsal")

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int] | None]:
        return {}

    def episode(self, key: Key) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""
