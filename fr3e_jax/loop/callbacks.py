"""Callbacks: a user's functions that the training loop calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


class Callback:
    """Called by the training loop on the first process; override what you need.

    Metrics are those of metrics.jsonl. What a callback raises ends the run with the callback's own traceback; the
    newest checkpoint stays. `on_step` and `on_evaluation` may return True to stop the run after the step under way,
    which is saved, as Ctrl-C does.
    """

    def on_start(self, run_dir: Path, step: int) -> None:
        """The run begins, or goes on, after ``step`` steps; its directory exists."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool | None:
        """A step has ended: the weights are new, the metrics are complete."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> bool | None:
        """The held-out problems were evaluated after ``step`` steps, before the first one included."""

    def on_checkpoint(self, step: int) -> None:
        """The state after ``step`` steps is saved, or is being written in the background."""

    def on_end(self, state: str, reason: str) -> None:
        """The run ends: ``finished``, ``stopped`` or ``failed``, with the reason. Exceptions pass without it."""


class Callbacks(Callback):
    """Several callbacks as one, called in their order."""

    def __init__(self, members: Sequence[Callback] = ()):
        self.members = members

    def on_start(self, run_dir: Path, step: int) -> None:
        for one in self.members:
            one.on_start(run_dir, step)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool:
        return any([one.on_step(step, metrics) for one in self.members])

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> bool:
        return any([one.on_evaluation(step, metrics) for one in self.members])

    def on_checkpoint(self, step: int) -> None:
        for one in self.members:
            one.on_checkpoint(step)

    def on_end(self, state: str, reason: str) -> None:
        for one in self.members:
            one.on_end(state, reason)
