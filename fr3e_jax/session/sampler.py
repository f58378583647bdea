"""The sampler of a run: its decoder, its tools, and its weights in the layout of rollouts."""

from __future__ import annotations

import contextlib
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
    report: Callable[[int, int], None] | None = None
    """Is told how many responses of a call have ended, and how many it samples; None: nobody is."""

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
        done, total = 0, sum(len(request.branches) for request in requests)
        report(0, total)

        def counted(rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
            nonlocal done
            done += len(rollouts)
            report(done, total)
            if ended is not None:
                ended(rollouts)

        return counted
