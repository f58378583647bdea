"""The sampler of a run: its decoder, its tools, and its weights in the layout of rollouts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fr3e_jax.policy.network import Params
from fr3e_jax.programs.reshard import RolloutWeights
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import CachedTrunk, Ended, Key, Rollout, Selector, TrunkRequest
from fr3e_jax.rollouts.stop_texts import NoCalls, StopTexts
from fr3e_jax.rollouts.tool_calls import ToolCalls
from fr3e_jax.rollouts.toolbox import Toolbox


@dataclass
class Sampler:
    """The rollout engine of a run with the run's tools or environment and its stop texts, if it has any."""

    engine: RolloutEngine
    weights: RolloutWeights
    toolbox: Toolbox | None = None
    stops: StopTexts | None = None  # without a toolbox, whose table has them
    report: Callable[[int, int, float], None] | None = None
    """Is told how many responses of a call have ended, how many it samples, and the share of its tokens that it has
    sampled; None: nobody is."""

    def sample(
        self,
        params: Params,
        requests: Sequence[TrunkRequest],
        select: Selector | None = None,
        ended: Ended | None = None,
    ) -> tuple[list[list[Rollout]], dict[Key, CachedTrunk]]:
        """`RolloutEngine.sample` with the run's tools. ``params``: from ``weights.of``."""
        ended = self._reporting(requests, ended)
        if self.toolbox is None:
            return self.engine.sample(params, requests, select, ended, self.stops and NoCalls(self.stops, requests))
        with contextlib.closing(ToolCalls(self.toolbox, requests)) as calls:
            return self.engine.sample(params, requests, select, ended, calls)

    def sample_uncounted(self, params: Params, requests: Sequence[TrunkRequest], ended: Ended) -> list[list[Rollout]]:
        """The rollouts of `sample` without a selector; nothing is counted."""
        results, _ = self.sample(params, requests, ended=ended)
        self.engine.take_counts()
        return results

    def _reporting(self, requests: Sequence[TrunkRequest], ended: Ended | None) -> Ended | None:
        """``ended``, which also reports; as it is if nobody wants a report."""
        report = self.report
        if report is None:
            return ended
        counts, before = self.engine.counts, self.engine.counts.sampled_tokens
        caps = [branch.max_tokens for request in requests for branch in request.branches]
        done, total = 0, len(caps)
        report(0, total, 0.0)

        def counted(rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
            nonlocal done
            done += len(rollouts)
            report(done, total, sampled_share(counts.sampled_tokens - before, done, caps))
            if ended is not None:
                ended(rollouts)

        return counted


def sampled_share(tokens: int, done: int, caps: Sequence[int]) -> float:
    """The share of all tokens that is sampled, if responses end with an equal chance at every token, or at their cap.

    The first to end are the short ones: their number, or their mean length, says little of those under way.

    Args:
      tokens: sampled so far, those of responses under way included.
      done: responses that have ended.
      caps: most tokens of each response.
    """
    if not tokens:
        return 0.0
    cap, mean = sum(caps) / len(caps), tokens / max(done, 0.5)
    return min(1.0, tokens / (-len(caps) * mean * math.expm1(-cap / mean)))
